"""Results as they come, of as many items as there are."""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, Unpack

from shoal.patterns.flow import Flow
from shoal.patterns.options import How, Options
from shoal.patterns.outcome import Outcome
from shoal.patterns.progress import Meter, Progress
from shoal.patterns.source import Call, Source, calls_of, size_of

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
            async with flow.lending.pause():
                yield outcome


@dataclass(frozen=True, slots=True)
class Started:
    """The call got its slot and began."""

    index: int


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """The call ended."""

    index: int
    outcome: Outcome[T]


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far the whole is, after each call that ended."""

    progress: Progress


Event: TypeAlias = Started | Finished[T] | Progressed


async def events(calls: Source[Call[T]], **options: Unpack[Options[T]]) -> AsyncGenerator[Event[T], None]:
    """Run all calls as `settled` does, and yield what happens while it happens; to leave early, see `stream`."""
    async with Flow(calls, How(**options)) as flow:
        flow.starts = deque()
        while await flow.wait_for_change():
            async with flow.lending.pause():
                while flow.starts:
                    yield Started(flow.starts.popleft())
            if flow.has_landed():
                outcome = await anext(flow)
                async with flow.lending.pause():
                    yield Finished(outcome.index, outcome)
                    yield Progressed(flow.meter.now())
