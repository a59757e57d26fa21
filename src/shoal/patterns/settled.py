"""All come to an end, whatever it is."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, Unpack

from shoal.patterns.flow import Flow
from shoal.patterns.how import How, Options
from shoal.patterns.outcome import Err, Outcome
from shoal.patterns.progress import Meter
from shoal.patterns.source import Call, Source, calls_of, size_of

T = TypeVar("T")
Item = TypeVar("Item")


async def settled(calls: Source[Call[T]], **options: Unpack[Options[T]]) -> list[Outcome[T]]:
    """Run all calls and give how each ended, in input order.

    Those that the deadline ended, or kept from starting, are `Err(TimedOut)`; of a source without a length, only those
    that were begun are in the list.
    """
    return await _settled(calls, size_of(calls), How(**options))


async def map(
    function: Callable[[Item], Awaitable[T]], items: Source[Item], **options: Unpack[Options[T]]
) -> list[Outcome[T]]:
    """Call *function* with each item and give how each call ended, in input order, as `settled` does."""
    return await _settled(calls_of(function, items), size_of(items), How(**options))


async def _settled(calls: Source[Call[T]], total: int | None, how: How[T]) -> list[Outcome[T]]:
    outcomes: dict[int, Outcome[T]] = {}
    async with Flow(calls, how, meter=Meter(how.progress, total)) as flow:
        async for outcome in flow:
            outcomes[outcome.index] = outcome
    late = range(len(outcomes), total or 0) if flow.is_cut else ()
    outcomes.update({index: Err(how.lateness(), index) for index in late})
    return [outcomes[index] for index in sorted(outcomes)]
