"""Results as they come, of as many items as there are."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar, Unpack

from shoal.patterns.flow import Flow
from shoal.patterns.how import How, Options
from shoal.patterns.outcome import Outcome
from shoal.patterns.progress import Meter
from shoal.patterns.source import Source, calls_of, size_of

T = TypeVar("T")
Item = TypeVar("Item")


async def stream(
    function: Callable[[Item], Awaitable[T]],
    items: Source[Item],
    *,
    ordered: bool = False,
    **options: Unpack[Options[T]],
) -> AsyncGenerator[Outcome[T], None]:
    """Call *function* with each item and yield how each call ended, as it ends or, when *ordered*, in input order.

    An item is pulled only when one of `limit` places is free, and a place is free again when its outcome was taken, so
    memory does not grow with the items. What *items* raises is raised after the calls were ended. To leave early,
    iterate inside `async with contextlib.aclosing(stream(…))`: all calls have ended when that is left. A bare `break`
    cancels them too, but nobody waits for them.
    """
    how: How[T] = How(**options)
    meter = Meter(how.progress, size_of(items))
    async with Flow(calls_of(function, items), how, meter=meter, ordered=ordered) as flow:
        async for outcome in flow:
            async with flow.lending.paused():
                yield outcome
