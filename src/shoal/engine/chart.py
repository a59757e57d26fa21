"""Jobs of a program's own that wait for each other: each starts from the merged work of its needs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.engine.assign import informed
from shoal.engine.dispatch import Dispatch
from shoal.engine.job import Job
from shoal.engine.schedule import in_turn
from shoal.engine.stack import Unstacked, stacked
from shoal.model.results import WorkerResult
from shoal.model.status import Status

Work = Callable[[Job], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class _Ended:
    result: WorkerResult
    stood: str | None
    """The commit that it started from; `None` is the run's base."""

    @property
    def commit(self) -> str | None:
        """What is handed on: a need that changed nothing hands on what it stood on itself."""
        return self.result.commit or self.stood


async def charted(dispatch: Dispatch, jobs: Sequence[Job], work: Work) -> None:
    """Do *work* for each of *jobs*; one whose need did not end well is skipped, and its result says so."""
    known = {job.step: job for job in jobs}

    async def perform(name: str, ended: Mapping[str, _Ended]) -> _Ended:
        job = known[name]
        needs = {need: ended[need] for need in job.needs}
        if bad := [need for need, one in needs.items() if not one.result.status.is_good]:
            return _noted(dispatch, job, Status.SKIPPED, f"it needs {', '.join(bad)}, which did not end well")
        try:
            standing = await _standing(dispatch, job, needs)
        except Unstacked as error:
            return _noted(dispatch, job, Status.FAILED, str(error))
        await work(standing)
        return _Ended(dispatch.result(job), standing.base)

    await in_turn({job.step: job.needs for job in jobs}, perform)


async def _standing(dispatch: Dispatch, job: Job, needs: Mapping[str, _Ended]) -> Job:
    base = job.base
    if base is None and job.is_stacked:
        base = await stacked(dispatch.site, job.step, job.needs, [one.commit for one in needs.values() if one.commit])
    told = job.task if job.wish is None else informed(job.task, job.wish, {need: needs[need].result for need in needs})
    return replace(job, base=base, task=told)


def _noted(dispatch: Dispatch, job: Job, status: Status, why: str) -> _Ended:
    dispatch.note(job, job.unstarted(status, why))
    return _Ended(dispatch.result(job), None)
