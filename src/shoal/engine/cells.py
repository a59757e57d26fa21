"""A matrix: one worker for each of its cells, some of which may wait for others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.engine.dispatch import Dispatch
from shoal.engine.job import Job
from shoal.engine.outcome import Outcome
from shoal.engine.schedule import in_turn
from shoal.engine.stack import Unstacked, stacked
from shoal.engine.together import together
from shoal.errors import BadInput, Refused
from shoal.model.artifact import document
from shoal.model.matrix import Cell, Matrix, expanded, from_items
from shoal.model.plan import Step, short
from shoal.model.results import WorkerResult
from shoal.model.rule import Rule
from shoal.model.status import Status
from shoal.patterns.limiter import Limiter


def cells_of(matrix: Matrix, needs: Mapping[str, Outcome]) -> tuple[Cell, ...]:
    """Give the cells: those that were written down, or one for each item that an earlier step left."""
    source = matrix.source
    if source is None:
        return expanded(matrix)
    left = {short(need): outcome.artifacts for need, outcome in needs.items()}[source.step]
    parts = left.get(source.artifact, ())
    if not parts:
        raise BadInput(f"there is no artifact {source.artifact} of step {source.step} to take items from")
    try:
        items = document(parts[0].content)
    except ValueError:
        raise BadInput(f"artifact {source.artifact} of step {source.step} is no JSON to take items from") from None
    return from_items(matrix, items)


async def cells_done(
    dispatch: Dispatch, step: Step, jobs: Sequence[Job], cells: Sequence[Cell]
) -> tuple[WorkerResult, ...]:
    """Run the jobs of all cells, so many at once as the matrix allows."""
    most = step.matrix.most if step.matrix else None
    rule = Rule.on_failure(step.on_failure)
    if not any(cell.needs for cell in cells):
        return await together(dispatch, jobs, rule, most)
    await _ordered(dispatch, jobs, cells, Limiter(most or max(1, len(jobs))), is_strict=rule.pattern == "gather")
    return tuple(dispatch.result(job) for job in jobs)


async def _ordered(
    dispatch: Dispatch, jobs: Sequence[Job], cells: Sequence[Cell], limiter: Limiter, *, is_strict: bool
) -> None:
    known = {cell.id: job for cell, job in zip(cells, jobs, strict=True)}
    needs = {cell.id: cell.needs for cell in cells}

    async def perform(name: str, ended: Mapping[str, WorkerResult]) -> WorkerResult:
        job = known[name]
        if bad := [need for need in needs[name] if not ended[need].status.is_good]:
            dispatch.note(
                job, job.unstarted(Status.SKIPPED, f"it needs {', '.join(map(ascii, bad))}, which did not end well")
            )
        else:
            await _one(dispatch, job, [ended[need] for need in needs[name]], limiter)
        result = dispatch.result(job)
        if is_strict and not result.status.is_good:
            raise Refused(result)
        return result

    try:
        await in_turn(needs, perform)
    except Refused:
        return


async def _one(dispatch: Dispatch, job: Job, needs: Sequence[WorkerResult], limiter: Limiter) -> None:
    try:
        commits = [commit for one in needs if (commit := one.commit or one.base)]  # unchanged, it hands on its base
        base = await stacked(dispatch.site, job.step, [one.session for one in needs], commits)
    except Unstacked as error:
        dispatch.note(job, job.unstarted(Status.FAILED, str(error)))
        return
    async with limiter.slot():
        await dispatch.done(replace(job, base=base or job.base))
