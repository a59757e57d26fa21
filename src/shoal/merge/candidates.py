"""Which sessions of a run are to be merged, and which are not, with the reason; pure."""

from collections.abc import Container, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from shoal.git.ancestry import Ancestry, missing_commits, since
from shoal.model.merge import MergeResult, MergeStatus, Preview
from shoal.model.repository import Repository
from shoal.model.results import RunReport, StepResult, WorkerResult

SHOWN = 5
INSIDE = "__"
"""In the names of steps that a merge itself made, to verify or to resolve: what they did is in it already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What is merged although a person should have looked at it."""

    executable: bool = False
    secrets: bool = False

    def bars(self, worker: WorkerResult) -> bool:
        """Say whether the work of *worker* is held."""
        return bool((worker.executable and not self.executable) or (worker.secrets and not self.secrets))


ALL_ALLOWED = Allowed(executable=True, secrets=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A session whose work is to be merged."""

    session: str
    source: str
    """The commit that holds its work."""
    subject: str = ""
    """What it was asked for, on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """All that was asked for: what can be tried, what is settled without a try, and what was left out."""

    candidates: tuple[Candidate, ...] = ()
    settled: tuple[MergeResult, ...] = ()
    left_out: tuple[str, ...] = ()
    """Sessions that did not end well or were taken out; they are merged when they are named."""


def without(chosen: Lot, gone: Container[str]) -> Lot:
    """Keep back whose commit is *gone*: its branch was deleted, and git has cleared it away."""
    lost = [one for one in chosen.candidates if one.source in gone]
    said = "its branch was deleted, and git has cleared its work away; run it again to have it"
    aside = (MergeResult(session=one.session, status=MergeStatus.HELD, message=said) for one in lost)
    kept = tuple(one for one in chosen.candidates if one not in lost)
    return replace(chosen, candidates=kept, settled=(*chosen.settled, *aside))


def lot(
    workers: Sequence[WorkerResult], *, named: Container[str] = (), allowed: Allowed, out: Container[str] = ()
) -> Lot:
    """Sort *workers*; those *named* are taken although they failed or are *out*."""
    candidates: list[Candidate] = []
    settled: list[MergeResult] = []
    left_out: list[str] = []
    for worker in workers:
        if worker.session not in named and (not worker.status.is_good or worker.session in out):
            left_out += [worker.session] if worker.commit else []
        elif worker.commit is None:
            settled.append(_no_changes(worker))
        elif allowed.bars(worker):
            settled.append(hold_back(worker))
        else:
            candidates.append(Candidate(session=worker.session, source=worker.commit, subject=worker.prompt))
    return Lot(candidates=tuple(candidates), settled=tuple(settled), left_out=tuple(left_out))


def workers_of(report: RunReport, named: Sequence[str] = ()) -> list[WorkerResult]:
    """Give the workers whose work counts, or those that are *named*, in the order of their names.

    Of a step that chose one of its workers only that one counts: the others are alternatives to it.
    """
    if named:
        known = {worker.session: worker for step in report.steps for worker in step.worker_results}
        return [known[session] for session in dict.fromkeys(named)]
    own = (step for step in report.steps if INSIDE not in step.step)
    return [worker for step in own for worker in _counting(step) if worker.status.is_ended]


def _counting(step: StepResult) -> Iterable[WorkerResult]:
    if step.selected is None:
        return step.worker_results
    return (worker for worker in step.worker_results if worker.index == step.selected)


def _no_changes(worker: WorkerResult) -> MergeResult:
    said = f"nothing of it is on a branch: {worker.error}" if worker.raw else "it changed nothing"
    status = MergeStatus.HELD if worker.raw else MergeStatus.NO_CHANGES
    return MergeResult(session=worker.session, status=status, message=said)


def hold_back(worker: WorkerResult) -> MergeResult:
    """Keep back what changes what runs on a person's machine, or has secrets in it."""
    more = f" and {len(worker.executable) - SHOWN} more" if len(worker.executable) > SHOWN else ""
    reasons, switches = [], []
    if worker.executable:
        reasons.append(f"it changes what runs on your machine: {', '.join(worker.executable[:SHOWN])}{more}")
        switches.append("--allow-executable-config")
    if worker.secrets:
        reasons.append(f"it has secrets of yours in it: {', '.join(worker.secrets[:SHOWN])}")
        switches.append("--allow-secrets")
    what = "; ".join(reasons)
    remedy = f"look at it with `shoal diff {worker.session}`, then merge it with {' '.join(switches)}"
    return MergeResult(
        session=worker.session, status=MergeStatus.HELD, source=worker.commit, message=f"{what}; {remedy}"
    )


async def counting(repository: Repository, report: RunReport, named: Sequence[str] = ()) -> list[WorkerResult]:
    """Give the workers whose work counts, or those that are *named*; with what only a former round changed."""
    workers = workers_of(report, named)
    if named or not report.earlier:
        return workers
    good = [one for one in workers if one.status.is_good]
    tips = [tip for one in (*good, *report.earlier) for tip in (one.base, one.commit) if tip]
    lost = await missing_commits(repository, tips)
    ancestry = await since(repository, (report.base,), [tip for tip in tips if tip not in lost])
    return [*_below(good, report.earlier, ancestry), *workers]


def _below(good: Sequence[WorkerResult], earlier: Sequence[WorkerResult], ancestry: Ancestry) -> list[WorkerResult]:
    """Find what *good* workers stand on, and have not in a commit of their own; the latest work has all before it."""
    stood = ancestry.reach(_some(one.base for one in good))
    held = ancestry.reach(_some(one.commit for one in good))
    found: list[WorkerResult] = []
    for one in reversed(earlier):
        if one.commit in stood - held - ancestry.reach(_some(later.commit for later in found)):
            found.append(one)
    return found[::-1]


def _some(commits: Iterable[str | None]) -> list[str]:
    return [commit for commit in commits if commit]


def order_candidates(candidates: Sequence[Candidate], preview: Preview) -> list[Candidate]:
    """Put those with the fewest conflicts first; among equals, the given order holds."""
    return sorted(candidates, key=lambda one: len(preview.partners(one.session)))


def hold_dependants(
    candidates: Sequence[Candidate], workers: Iterable[WorkerResult], ancestry: Ancestry, there: Set[str]
) -> Iterator[MergeResult]:
    """Keep back those that stand on work of *workers*, which is held, and not *there* yet."""
    flagged = {one.commit: one for one in workers if one.commit and one.commit not in there}
    if not flagged:
        return
    for one in candidates:
        below = ancestry.reach([one.source]) - {one.source}
        if found := [worker for commit, worker in flagged.items() if commit in below]:
            said = f"it stands on {found[0].session}: {hold_back(found[0]).message}"
            yield MergeResult(session=one.session, status=MergeStatus.HELD, source=one.source, message=said)
