"""Steps that wait for others: each starts the moment its own needs have ended well, from their merged work."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from shoal.engine.assign import informed
from shoal.engine.dispatch import Dispatch
from shoal.engine.job import Job
from shoal.engine.pins import pin
from shoal.engine.session import FAULTS
from shoal.errors import first_of
from shoal.git.merge import Conflicted, Merged, combined
from shoal.model.results import WorkerResult
from shoal.model.status import Status

SHOWN = 5

Jobs = Mapping[str, tuple[Job, ...]]
Work = Callable[[tuple[Job, ...]], Awaitable[object]]
"""Run the jobs of one step."""
Judge = Callable[[str, Sequence[WorkerResult]], bool]
"""Say whether a step of that name and with those results ended well enough for those that need it."""


def all_good(_: str, results: Sequence[WorkerResult]) -> bool:
    """Judge a step by all of its workers."""
    return all(one.status.is_good for one in results)


async def in_turn(dispatch: Dispatch, jobs: Jobs, work: Work, judge: Judge = all_good) -> None:
    """Do *work* for each step of *jobs*; one whose need did not end well is skipped, and its results say so."""
    ends = {name: asyncio.Event() for name in jobs}
    stands: dict[str, str | None] = {}

    async def one(name: str) -> None:
        for need in jobs[name][0].needs:
            await ends[need].wait()
        stands[name] = await _worked(dispatch, jobs, name, stands, work, judge)
        ends[name].set()

    try:
        async with asyncio.TaskGroup() as group:
            for name in jobs:
                group.create_task(one(name))
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None


async def _worked(
    dispatch: Dispatch, jobs: Jobs, name: str, stands: Mapping[str, str | None], work: Work, judge: Judge
) -> str | None:
    """Work on one step, and give the commit that it stood on; *stands* are those of its needs."""
    own = jobs[name]
    needs = {need: [dispatch.result(job) for job in jobs[need]] for need in own[0].needs}
    bad = [need for need, results in needs.items() if not judge(need, results)]
    if bad:
        _noted(dispatch, own, Status.SKIPPED, f"it needs {', '.join(bad)}, which did not end well")
        return None
    # Several workers of one need did the same task: which of them to build on is nobody's guess.
    single = {need: results[0] for need, results in needs.items() if len(results) == 1}
    # A need that changed nothing hands on what it stood on itself.
    commits = [single[need].commit if need in single and single[need].commit else stands[need] for need in needs]
    try:
        base = await _base(dispatch, own[0], [commit for commit in commits if commit])
    except FAULTS as error:
        _noted(dispatch, own, Status.FAILED, f"the work of its needs ({', '.join(needs)}) is gone: {error}")
        return None
    if isinstance(base, Conflicted):
        files = ", ".join(ascii(path)[1:-1] for path in base.paths[:SHOWN])
        why = f"the work of its needs ({', '.join(single)}) conflicts in {files}"
        _noted(dispatch, own, Status.FAILED, f"{why}; merge them first, or give it a `base`")
        return None
    standing = tuple(_standing(job, base, single) for job in own)
    await work(standing)
    return standing[0].base


async def _base(dispatch: Dispatch, job: Job, commits: Sequence[str]) -> Merged | Conflicted | None:
    if job.base is not None or not job.is_stacked or not commits:
        return None
    message = f"Base of {job.step}: {', '.join(job.needs)}\n"
    site = dispatch.site
    base = await combined(site.repository, commits, message)
    if isinstance(base, Merged):
        await pin(site.repository, site.run, base.commit)  # a slot may be long in coming, and a gc quick
    return base


def _standing(job: Job, base: Merged | None, needs: Mapping[str, WorkerResult]) -> Job:
    job = replace(job, base=base.commit) if base else job
    return replace(job, task=informed(job.task, job.wish, needs)) if job.wish else job


def _noted(dispatch: Dispatch, jobs: Sequence[Job], status: Status, why: str) -> None:
    for job in jobs:
        dispatch.note(job, job.unstarted(status, why))
