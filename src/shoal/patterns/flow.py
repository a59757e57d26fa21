"""Run the calls of all patterns: pull them from a source, run them in a sliding window, deliver them as they end."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeAlias, TypeVar, Unpack

from shoal.errors import Refused, TimedOut
from shoal.patterns.options import Options, PatternSettings
from shoal.patterns.outcome import Cancelled, Err, Ok, Outcome, Progress, ProgressMeter
from shoal.patterns.retry import again
from shoal.patterns.slot import LentSlot, run_below
from shoal.patterns.source import Call, Source, calls_of, each, size_of

T = TypeVar("T")


class within:
    """Cancel the block after *seconds*, and raise the error that *late* makes; `None` means no limit."""

    def __init__(self, seconds: float | None, late: Callable[[], TimedOut]) -> None:
        self._clock = asyncio.timeout(seconds)
        self._late = late

    async def __aenter__(self) -> None:
        await self._clock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._clock.__aexit__(kind, error, trace)
        except TimeoutError as passed:  # only our own timeout: one raised inside the block is not raised by its exit
            raise self._late() from passed


async def timeout(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Run *call* for at most *seconds*; it has been cancelled and has ended when `TimedOut` is raised."""
    async with within(seconds, lambda: TimedOut("the timeout", seconds)):
        return await call()


async def run_to_outcome(call: Call[T], how: PatternSettings[T], index: int, started: Callable[[], None]) -> Outcome[T]:
    """Run *call* by the options *how* and return its outcome; only a cancellation from outside propagates."""
    attempt = partial(_once, call, how, started)
    try:
        async with within(how.seconds_left(), how.lateness):
            return Ok(await (attempt() if how.retry is None else again(attempt, how.retry)), index)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Cancelled(index)
    except Exception as error:
        return Err(error, index)


async def _once(call: Call[T], how: PatternSettings[T], started: Callable[[], None]) -> T:
    async with how.slot():
        started()
        async with within(how.timeout, how.overtime):
            value = await call()
    if how.accept is not None and not how.accept(value):
        raise Refused(value)
    return value


class Flow(Generic[T]):
    """Running calls: iterate for their outcomes; after the `async with`, none of them runs any more.

    At most `how.width()` calls are started and not yet delivered, so the window limits memory, not the source. No task
    of the group ever fails, so it never cancels the task it was entered in: a generator may yield inside.
    """

    def __init__(
        self,
        calls: Source[Call[T]],
        how: PatternSettings[T],
        *,
        meter: ProgressMeter | None = None,
        ordered: bool = False,
    ) -> None:
        self.meter = meter or ProgressMeter(how.progress, size_of(calls))
        self.is_cut = False  # whether the deadline kept it from pulling more
        self.starts: deque[int] | None = None  # a deque when the caller wants to see starts as well
        self._calls = calls
        self._how = how
        self._group = asyncio.TaskGroup()
        self.lending = LentSlot()
        self._running: set[asyncio.Task[Outcome[T]]] = set()
        self._landed: deque[Outcome[T]] = deque()
        self._early: dict[int, Outcome[T]] | None = {} if ordered else None
        self._begun = self._in_order = self._delivered = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._stopped = False
        self._trouble: Exception | None = None  # what the source raised

    async def __aenter__(self) -> Self:
        self.lending.__enter__()
        await self._group.__aenter__()
        self._feeder = self._group.create_task(self._feed())
        self._feeder.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        try:
            # Exits without an error, which it would wrap, even `GeneratorExit`.
            await self._group.__aexit__(None, None, None)
        finally:
            self.lending.__exit__(None, None, None)
            self.meter.close()

    def stop(self) -> None:
        """Cancel what runs and pull no more; iterating on waits for those and yields the ones that ended otherwise.

        Only once: a second cancellation would interrupt a call's cleanup.
        """
        if self._stopped:
            return
        self._stopped = True
        self._feeder.cancel()
        for task in self._running:
            task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome[T]:
        while not self._landed:
            if not await self.wait_for_change():
                raise StopAsyncIteration
        outcome = self._landed.popleft()
        self._delivered += 1
        self._room.set()
        await self.meter.count(outcome)
        return outcome

    def has_landed(self) -> bool:
        """Return whether an outcome can be taken without waiting."""
        return bool(self._landed)

    async def wait_for_change(self) -> bool:
        """Wait until a call has started or ended; return `False` when all are over. Raise what the source raised."""
        while not self._landed and not self.starts:
            if self._feeder.done() and not self._running:
                if self._trouble is not None:
                    raise self._trouble
                return False
            self._news.clear()
            await self._news.wait()
        return True

    async def _feed(self) -> None:
        run_below(self.lending.below)
        try:
            async with aclosing(each(self._calls)) as calls, within(self._how.seconds_left(), self._how.lateness):
                await self._has_room()
                async for call in calls:
                    self._begin(call)
                    await self._has_room()
        except Exception as error:
            self.is_cut = isinstance(error, TimedOut) and self._how.is_late()
            if not self.is_cut:  # otherwise, the same deadline ends what was started
                self._trouble = error
                self.stop()

    async def _has_room(self) -> None:
        while self._begun - self._delivered >= self._how.width():
            self._room.clear()
            await self._room.wait()

    def _begin(self, call: Call[T]) -> None:
        index, self._begun = self._begun, self._begun + 1
        task = self._group.create_task(run_to_outcome(call, self._how, index, partial(self._note_start, index)))
        self._running.add(task)
        task.add_done_callback(partial(self._note_end, index))

    def _note_start(self, index: int) -> None:
        if self.starts is not None:
            self.starts.append(index)
            self._news.set()

    def _note_end(self, index: int, task: asyncio.Task[Outcome[T]]) -> None:
        """Land its outcome; this also runs for a task that was cancelled before it began."""
        self._running.discard(task)
        self._news.set()
        if not task.cancelled():
            if task.exception() is None:  # otherwise it interrupts the whole program, and the group raises it
                self._land(index, task.result())
        elif not self._stopped:
            self._land(index, Cancelled(index))

    def _land(self, index: int, outcome: Outcome[T]) -> None:
        if self._early is None:
            self._landed.append(outcome)
            return
        self._early[index] = outcome
        while (ready := self._early.pop(self._in_order, None)) is not None:
            self._landed.append(ready)
            self._in_order += 1


Item = TypeVar("Item")


async def stream(
    function: Callable[[Item], Awaitable[T]],
    items: Source[Item],
    *,
    ordered: bool = False,
    **options: Unpack[Options[T]],
) -> AsyncGenerator[Outcome[T], None]:
    """Call *function* with each item and yield how each call ended, as it ends or, when *ordered*, in input order.

    An item is pulled only when one of `limit` places is free, and a place is free again once its outcome is taken, so
    memory does not grow with the items. Errors of *items* are raised after the calls have ended. To leave early,
    iterate inside `async with contextlib.aclosing(stream(…))`: all calls have ended on exit. A bare `break` cancels
    them too, but nothing waits for them.
    """
    how: PatternSettings[T] = PatternSettings(**options)
    meter = ProgressMeter(how.progress, size_of(items))
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
    """How many calls have ended, after each end."""

    progress: Progress


Event: TypeAlias = Started | Finished[T] | Progressed


async def events(calls: Source[Call[T]], **options: Unpack[Options[T]]) -> AsyncGenerator[Event[T], None]:
    """Run all calls as `settled` does, and yield what happens while it happens; to leave early, see `stream`."""
    async with Flow(calls, PatternSettings(**options)) as flow:
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
