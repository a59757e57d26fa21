"""A running pattern as a stream of events."""

from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, Unpack

from shoal.patterns.flow import Flow
from shoal.patterns.how import How, Options
from shoal.patterns.outcome import Outcome
from shoal.patterns.progress import Progress
from shoal.patterns.source import Call, Source

T = TypeVar("T")


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
        while await flow.stirred():
            async with flow.lending.paused():
                while flow.starts:
                    yield Started(flow.starts.popleft())
            if flow.has_landed():
                outcome = await anext(flow)
                async with flow.lending.paused():
                    yield Finished(outcome.index, outcome)
                    yield Progressed(flow.meter.now())
