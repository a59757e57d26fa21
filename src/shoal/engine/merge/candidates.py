"""Which sessions of a run are to be merged, and which are not, with the reason; pure."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.model.merge import MergeResult, MergeStatus
from shoal.model.results import RunReport, StepResult, WorkerResult

SHOWN = 5
INSIDE = "__"
"""In the names of steps that a merge itself made, to verify or to resolve: what they did is in it already."""


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
    workers: Sequence[WorkerResult], *, named: Container[str] = (), allow_executable: bool, out: Container[str] = ()
) -> Lot:
    """Sort *workers*; those *named* are taken although they failed or are *out*."""
    candidates: list[Candidate] = []
    settled: list[MergeResult] = []
    left_out: list[str] = []
    for worker in workers:
        if worker.session not in named and (not worker.status.is_good or worker.session in out):
            left_out += [worker.session] if worker.commit else []
        elif worker.commit is None:
            settled.append(_unchanged(worker))
        elif worker.executable and not allow_executable:
            settled.append(held(worker))
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


def _unchanged(worker: WorkerResult) -> MergeResult:
    said = f"nothing of it is on a branch: {worker.error}" if worker.raw else "it changed nothing"
    status = MergeStatus.HELD if worker.raw else MergeStatus.NO_CHANGES
    return MergeResult(session=worker.session, status=status, message=said)


def held(worker: WorkerResult) -> MergeResult:
    """Keep back what changes what runs on a person's machine."""
    more = f" and {len(worker.executable) - SHOWN} more" if len(worker.executable) > SHOWN else ""
    what = f"it changes what runs on your machine: {', '.join(worker.executable[:SHOWN])}{more}"
    remedy = f"look at it with `shoal diff {worker.session}`, then merge it with --allow-executable-config"
    return MergeResult(
        session=worker.session, status=MergeStatus.HELD, source=worker.commit, message=f"{what}; {remedy}"
    )
