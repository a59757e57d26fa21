"""Handing events to whoever subscribed, so that a slow or failing subscriber harms nobody."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from shoal.agent.events import AgentEvent

Handler = Callable[[AgentEvent], Awaitable[object] | object]

QUEUE_EVENTS = 1_000
GRACE_SECONDS = 0.25  # what a turn waits at its end for subscribers that are behind


class Subscription:
    """One subscriber, with what it missed and how often it failed."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.is_active = True
        self.dropped = 0
        self.errors = 0

    def cancel(self) -> None:
        """Hand it nothing any more, in no fork."""
        self.is_active = False

    async def take(self, event: AgentEvent) -> None:
        """Call the handler; an error of its own is counted and goes no further."""
        if not self.is_active:
            return
        try:
            done = self._handler(event)
            if inspect.isawaitable(done):
                await done
        except Exception:  # whatever it is, it is the subscriber's own
            self.errors += 1
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self.errors += 1  # nobody cancelled us: it raised that itself


class Post:
    """The events of one turn, in a bounded queue for each subscriber."""

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self._boxes = [_Box(one) for one in subscriptions if one.is_active]

    def __bool__(self) -> bool:
        """Say whether anybody listens."""
        return bool(self._boxes)

    def say(self, event: AgentEvent) -> None:
        """Queue *event* for every subscriber; one whose queue is full misses it."""
        for box in self._boxes:
            box.put(event)

    @contextlib.asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        """Deliver while the block runs; at its end, subscribers that are behind get a moment and are then cut."""
        if not self._boxes:
            yield
            return
        group = asyncio.TaskGroup()
        await group.__aenter__()
        tasks = [group.create_task(box.delivered()) for box in self._boxes]
        try:
            yield
        finally:
            # Left by hand, for an abandoned stream closes its generator with an error that no group may see.
            try:
                await self._settled(tasks)
            finally:
                await group.__aexit__(None, None, None)

    async def _settled(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for box in self._boxes:
            box.close()
        try:
            await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()


class _Box:
    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._queue: asyncio.Queue[AgentEvent | None] = asyncio.Queue()

    def put(self, event: AgentEvent) -> None:
        if self._queue.qsize() < QUEUE_EVENTS:
            self._queue.put_nowait(event)
        else:
            self._subscription.dropped += 1

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def delivered(self) -> None:
        is_delivered = True
        try:
            while (event := await self._queue.get()) is not None:
                is_delivered = False
                await self._subscription.take(event)
                is_delivered = True
        finally:
            # cut off: what it was busy with, and what still waits behind that (without the end mark)
            self._subscription.dropped += (not is_delivered) + max(0, self._queue.qsize() - 1)
