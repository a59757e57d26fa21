"""Combine calls: all of them, each whatever happens, the first success, a quorum, or stage after stage."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar, Unpack

from shoal.errors import AllFailed, BadInput, CallCancelled, QuorumMissed
from shoal.patterns.flow import Flow
from shoal.patterns.options import Options, PatternSettings
from shoal.patterns.outcome import Cancelled, Err, Ok, Outcome, ProgressMeter
from shoal.patterns.source import Call, Source, calls_of, size_of

T = TypeVar("T")


async def gather(calls: Source[Call[T]], **options: Unpack[Options[T]]) -> list[T]:
    """Run all calls and return their values in input order; the first failure ends the rest and is raised.

    Errors of other calls that failed before they were ended are added to it as notes.
    """
    return await gather_counted(calls, PatternSettings(**options))


async def gather_counted(
    calls: Source[Call[T]], how: PatternSettings[T], meter: ProgressMeter | None = None
) -> list[T]:
    """Gather with the settings *how*, counting into *meter*."""
    values: dict[int, T] = {}
    failure: Exception | None = None
    async with Flow(calls, how, meter=meter) as flow:
        async for outcome in flow:
            if isinstance(outcome, Ok):
                values[outcome.index] = outcome.value
                continue
            error = CallCancelled(outcome.index) if isinstance(outcome, Cancelled) else outcome.error
            if failure is None:
                failure = error
                flow.stop()
            elif error is not failure:
                failure.add_note(f"call {outcome.index} failed too: {error!r}")
    if failure is None and flow.is_cut:
        failure = how.lateness()
    if failure is not None:
        raise failure
    return [values[index] for index in sorted(values)]


Item = TypeVar("Item")


async def settled(calls: Source[Call[T]], **options: Unpack[Options[T]]) -> list[Outcome[T]]:
    """Run all calls and return how each ended, in input order.

    Calls that the deadline ended, or kept from starting, are `Err(TimedOut)`; for a source without a length, the list
    contains only those that were started.
    """
    return await _run_settled(calls, size_of(calls), PatternSettings(**options))


async def map(
    function: Callable[[Item], Awaitable[T]], items: Source[Item], **options: Unpack[Options[T]]
) -> list[Outcome[T]]:
    """Call *function* with each item and return how each call ended, in input order, as `settled` does."""
    return await _run_settled(calls_of(function, items), size_of(items), PatternSettings(**options))


async def _run_settled(calls: Source[Call[T]], total: int | None, how: PatternSettings[T]) -> list[Outcome[T]]:
    outcomes: dict[int, Outcome[T]] = {}
    async with Flow(calls, how, meter=ProgressMeter(how.progress, total)) as flow:
        async for outcome in flow:
            outcomes[outcome.index] = outcome
    late = range(len(outcomes), total or 0) if flow.is_cut else ()
    outcomes.update({index: Err(how.lateness(), index) for index in late})
    return [outcomes[index] for index in sorted(outcomes)]


async def race(calls: Source[Call[T]], **options: Unpack[Options[T]]) -> T:
    """Return the value of the first call that succeeds; the others are cancelled and have ended by then.

    Raises `AllFailed` with every cause, or `TimedOut` when the deadline passed first.
    """
    how: PatternSettings[T] = PatternSettings(**options)
    winner: Ok[T] | None = None
    errors: list[Exception] = []
    async with Flow(calls, how) as flow:
        async for outcome in flow:
            match outcome:
                case Ok():
                    winner = winner or outcome
                    flow.stop()
                case Cancelled(index):
                    errors.append(CallCancelled(index))
                case _:
                    errors.append(outcome.error)
    if winner is not None:
        return winner.value
    raise how.lateness() if how.is_late() else AllFailed(errors)


async def quorum(calls: Source[Call[T]], n: int, **options: Unpack[Options[T]]) -> list[T]:
    """Return the values of the first *n* calls that succeed, in input order, and end the rest.

    Raises `QuorumMissed` as soon as too many have failed, or `TimedOut` when the deadline passed first.
    """
    if n < 0:
        raise BadInput(f"a quorum is at least 0, not {n}")
    how: PatternSettings[T] = PatternSettings(**options)
    total = size_of(calls)
    good: dict[int, T] = {}
    errors: list[Exception] = []
    async with Flow(calls if total is None or total >= n > 0 else (), how) as flow:
        async for outcome in flow:
            match outcome:
                case Ok(value, index) if len(good) < n:
                    good[index] = value
                case Ok():
                    pass  # it succeeded while it was being cancelled
                case Cancelled(index):
                    errors.append(CallCancelled(index))
                case _:
                    errors.append(outcome.error)
            if len(good) == n or (total is not None and total - len(errors) < n):
                flow.stop()
    if len(good) == n:
        return [good[index] for index in sorted(good)]
    raise how.lateness() if how.is_late() else QuorumMissed(n, len(good), errors)


# `Any`: each stage takes the result of the one before, which Python's types cannot express for a list of functions.
Function: TypeAlias = Callable[[Any], Awaitable[Any]]
Stage: TypeAlias = Function | Sequence[Function]


async def stages(*stages: Stage, initial: object = None, **options: Unpack[Options[Any]]) -> Any:  # noqa: ANN401
    """Run the stages one after the other and give the last one's result.

    A stage is a function of the result of the stage before (of *initial*, for the first), or several such functions,
    which run at once as in `gather` and pass on a list. A failure ends its stage, and no later one starts.
    """
    how: PatternSettings[Any] = PatternSettings(**options)
    whole = [(stage,) if callable(stage) else tuple(stage) for stage in stages]
    meter = ProgressMeter(how.progress, sum(len(functions) for functions in whole))
    result: Any = initial
    for stage, functions in zip(stages, whole, strict=True):
        calls = [partial(function, result) for function in functions]
        results = await gather_counted(calls, how, meter)
        result = results[0] if callable(stage) else results
    return result
