"""Choose which sessions of a run to merge, with the reason for each other one, and preview their conflicts."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from shoal.git.commits import Ancestry, missing_commits, since
from shoal.git.conflicts import Conflicted, Tried
from shoal.git.diff import find_meeting_pairs, list_touched_files
from shoal.git.merge import try_pairs
from shoal.model.merge import Clash, MergeResult, MergeStatus, Preview
from shoal.model.repository import Repository
from shoal.model.results import Purpose, RunReport, StepResult, WorkerResult

MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWaivers:
    """Work to merge although a person should review it."""

    executable: bool = False
    secrets: bool = False

    def bars(self, worker: WorkerResult) -> bool:
        """Return whether the work of *worker* is held."""
        return bool((worker.executable and not self.executable) or (worker.secrets and not self.secrets))


ALL_ALLOWED = MergeWaivers(executable=True, secrets=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A session whose work is to be merged."""

    session: str
    source: str
    """The commit with its work."""
    subject: str = ""
    """Its task on one line."""
    agent: str = ""

    @property
    def title(self) -> str:
        """What its branch is called after, and its agent."""
        label = self.session.rpartition("-")[0] or self.session
        return f"{label} ({self.agent})" if self.agent else label


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The requested sessions: those to try, those settled without a try, and those left out."""

    candidates: tuple[Candidate, ...] = ()
    settled: tuple[MergeResult, ...] = ()
    left_out: tuple[str, ...] = ()
    """Sessions that failed or were taken out; they are merged if they are named."""

    def without_missing(self, missing: Container[str]) -> "Selection":
        """Hold the sessions whose commit is *missing*: their branch was deleted and git has pruned the commit."""
        message = "its branch was deleted and git has pruned its work; run it again"
        lost = [candidate for candidate in self.candidates if candidate.source in missing]
        held = (MergeResult(session=each.session, status=MergeStatus.HELD, message=message) for each in lost)
        left = tuple(candidate for candidate in self.candidates if candidate not in lost)
        return replace(self, candidates=left, settled=(*self.settled, *held))


def select_candidates(
    workers: Sequence[WorkerResult], *, named: Container[str] = (), allowed: MergeWaivers, removed: Container[str] = ()
) -> Selection:
    """Sort *workers*; those *named* are taken although they failed or were *removed* by an undo."""
    candidates: list[Candidate] = []
    settled: list[MergeResult] = []
    left_out: list[str] = []
    for worker in workers:
        if worker.session not in named and (not worker.status.is_good or worker.session in removed):
            left_out += [worker.session] if worker.commit else []
        elif worker.commit is None:
            settled.append(_report_no_changes(worker))
        elif allowed.bars(worker):
            settled.append(hold_back(worker))
        else:
            agent = worker.agent
            candidates.append(
                Candidate(session=worker.session, source=worker.commit, subject=worker.prompt, agent=agent)
            )
    return Selection(candidates=tuple(candidates), settled=tuple(settled), left_out=tuple(left_out))


def _report_no_changes(worker: WorkerResult) -> MergeResult:
    message = f"none of its work is on a branch: {worker.error}" if worker.raw else "it changed nothing"
    status = MergeStatus.HELD if worker.raw else MergeStatus.NO_CHANGES
    return MergeResult(session=worker.session, status=status, message=message)


def hold_back(worker: WorkerResult) -> MergeResult:
    """Hold work that changes what runs on a person's machine, or that contains secrets."""
    more = f" and {len(worker.executable) - MAX_SHOWN} more" if len(worker.executable) > MAX_SHOWN else ""
    reasons, switches = [], []
    if worker.executable:
        reasons.append(f"it changes files that run on your machine: {', '.join(worker.executable[:MAX_SHOWN])}{more}")
        switches.append("--allow-executable-config")
    if worker.secrets:
        reasons.append(f"it contains your secrets: {', '.join(worker.secrets[:MAX_SHOWN])}")
        switches.append("--allow-secrets")
    remedy = f"review it with `shoal diff {worker.session}`, then merge it with {' '.join(switches)}"
    return MergeResult(
        session=worker.session,
        status=MergeStatus.HELD,
        source=worker.commit,
        message=f"{'; '.join(reasons)}; {remedy}",
    )


async def find_workers(repository: Repository, report: RunReport, named: Sequence[str] = ()) -> list[WorkerResult]:
    """Find the workers to merge, or those *named*, including workers of earlier rounds that later work builds on."""
    workers = _list_workers(report, named)
    if named or not report.earlier:
        return workers
    good = [worker for worker in workers if worker.status.is_good]
    tips = [tip for worker in (*good, *report.earlier) for tip in (worker.base, worker.commit) if tip]
    lost = await missing_commits(repository, tips)
    ancestry = await since(repository, (report.base,), [tip for tip in tips if tip not in lost])
    return [*_find_earlier(good, report.earlier, ancestry), *workers]


def _list_workers(report: RunReport, named: Sequence[str]) -> list[WorkerResult]:
    """List the workers in order of their names; of a step with `select`, only the selected one."""
    if named:
        known = {worker.session: worker for worker in report.workers}
        return [known[session] for session in dict.fromkeys(named)]
    selected = (worker for step in report.steps for worker in _select_workers(step))
    return [worker for worker in selected if worker.purpose is Purpose.WORK and worker.status.is_ended]


def _select_workers(step: StepResult) -> Iterable[WorkerResult]:
    if step.selected is None:
        return step.worker_results
    return (worker for worker in step.worker_results if worker.index == step.selected)


def _find_earlier(
    good: Sequence[WorkerResult], earlier: Sequence[WorkerResult], ancestry: Ancestry
) -> list[WorkerResult]:
    """Find the commits that *good* workers build on but do not contain; the latest contains all earlier ones."""
    below_bases = ancestry.reach(_present(worker.base for worker in good))
    below_commits = ancestry.reach(_present(worker.commit for worker in good))
    found: list[WorkerResult] = []
    for worker in reversed(earlier):
        if worker.commit in below_bases - below_commits - ancestry.reach(_present(later.commit for later in found)):
            found.append(worker)
    return found[::-1]


def _present(commits: Iterable[str | None]) -> list[str]:
    return [commit for commit in commits if commit]


def order_candidates(candidates: Sequence[Candidate], preview: Preview) -> list[Candidate]:
    """Put those with the fewest conflicts first; ties keep their order."""
    return sorted(candidates, key=lambda candidate: len(preview.partners(candidate.session)))


def hold_dependants(
    candidates: Sequence[Candidate], held: Iterable[WorkerResult], ancestry: Ancestry, merged: Set[str]
) -> Iterator[MergeResult]:
    """Hold the candidates that build on *held* workers whose commits are not *merged* yet."""
    held_commits = {worker.commit: worker for worker in held if worker.commit and worker.commit not in merged}
    if not held_commits:
        return
    for candidate in candidates:
        below = ancestry.reach([candidate.source]) - {candidate.source}
        if found := [worker for commit, worker in held_commits.items() if commit in below]:
            message = f"it builds on {found[0].session}: {hold_back(found[0]).message}"
            yield MergeResult(
                session=candidate.session, status=MergeStatus.HELD, source=candidate.source, message=message
            )


async def preview_merge(
    repository: Repository,
    run: str,
    base: str,
    candidates: Sequence[Candidate],
    bases: Mapping[str, str] | None = None,
) -> Preview:
    """Try each pair of *candidates* that touches the same files, except sessions that build on each other.

    *bases* are the commits that sessions started from, if they differ from *base*: what was there before is not their
    own change.
    """
    source = {candidate.session: candidate.source for candidate in candidates}
    own = {session: (bases or {}).get(session, base) for session in source}
    changed: dict[str, tuple[str, ...]] = {}
    for start in dict.fromkeys(own.values()):
        changed |= await list_touched_files(repository, start, [source[name] for name in source if own[name] == start])
    pairs, is_whole = find_meeting_pairs({session: changed[commit] for session, commit in source.items()})
    if not pairs:
        return Preview(run=run, sessions=tuple(source), is_whole=is_whole)
    ancestry = await since(repository, [base], list(source.values()))
    reach = {commit: ancestry.reach([commit]) for commit in {source[name] for pair in pairs for name in pair}}
    apart = [
        (first, second)
        for first, second in pairs
        if source[first] not in reach[source[second]] and source[second] not in reach[source[first]]
    ]
    tried = await try_pairs(repository, [(source[first], source[second]) for first, second in apart])
    outcomes = list(zip(apart, tried, strict=True))
    return Preview(
        run=run,
        sessions=tuple(source),
        overlaps=tuple(pair for pair, outcome in outcomes if not isinstance(outcome, Conflicted)),
        clashes=tuple(_clash(pair, outcome) for pair, outcome in outcomes if isinstance(outcome, Conflicted)),
        is_whole=is_whole,
    )


def _clash(pair: tuple[str, str], tried: Tried) -> Clash:
    conflicts = tried.conflicts if isinstance(tried, Conflicted) else ()
    return Clash(one=pair[0], other=pair[1], conflicts=conflicts)
