"""Jobs run together by a rule: which failures stop the others, and which success is enough."""

from collections.abc import Sequence
from functools import partial

from shoal.engine.dispatch import Dispatch, is_good
from shoal.engine.job import Job
from shoal.errors import AllFailed, QuorumMissed, Refused
from shoal.model.results import WorkerResult
from shoal.model.rule import Rule
from shoal.model.status import Status
from shoal.patterns import Call, Err, Limiter, gather, quorum, race, settled


async def together(
    dispatch: Dispatch, jobs: Sequence[Job], rule: Rule, most: int | None = None
) -> tuple[WorkerResult, ...]:
    """Run *jobs* by *rule*, at most *most* at once, and give all results in their order, those of stopped ones too."""
    if len(jobs) == 1:  # by every rule: it runs, and its result is a value
        await dispatch.done(jobs[0])
        return (dispatch.result(jobs[0]),)
    calls = [partial(dispatch.done, job) for job in jobs]
    limiter = room_for(jobs) if most is None else Limiter(most)
    try:
        match rule.pattern:
            case "gather":
                await gather(calls, accept=is_good, limiter=limiter)
            case "race":
                await race(calls, accept=is_good, limiter=limiter)
            case "quorum":
                await quorum(calls, rule.wanted, accept=is_good, limiter=limiter)
            case _:
                await _settled(calls, limiter)
    except (AllFailed, QuorumMissed) as missed:
        for error in missed.errors:
            _expect(error)
    except Refused:
        pass
    return tuple(dispatch.result(job) for job in jobs)


def room_for(jobs: Sequence[Job]) -> Limiter:
    """Let all of *jobs* begin: each session takes its own slot, and a retry that waits holds none."""
    return Limiter(max(1, len(jobs)))


async def _settled(calls: Sequence[Call[WorkerResult]], limiter: Limiter) -> None:
    for outcome in await settled(calls, limiter=limiter):
        if isinstance(outcome, Err):
            raise outcome.error


def verdict(rule: Rule, results: Sequence[WorkerResult]) -> Status:
    """Say how a step ended whose workers ran by *rule*."""
    if not results:  # a matrix of no items has nothing to do
        return Status.SUCCEEDED
    if all(result.status is Status.SKIPPED for result in results):
        return Status.SKIPPED
    good = sum(result.status.is_good for result in results)
    if good >= rule.needed(len(results)):
        return Status.SUCCEEDED
    if all(result.status.is_good or result.status is Status.CANCELLED for result in results):
        return Status.CANCELLED
    return Status.DEGRADED if good and rule.pattern == "settled" else Status.FAILED


def _expect(error: Exception) -> None:
    """An agent's failure is a value; anything that was raised is the machine's or ours."""
    if not isinstance(error, Refused):
        raise error
