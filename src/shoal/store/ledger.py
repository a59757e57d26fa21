"""Write events: facts are acknowledged after their commit, agents' output is recorded in the background."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from shoal.model.events import Event, Output, Recorded, SessionStarted
from shoal.store.kind import EventRow, Store
from shoal.store.paths import component
from shoal.store.write_queue import Append, NoteBarrier, WriteQueue, WriteQueueBounds, WriteQueueEntry
from shoal.store.writer import OnBlocked, WriteOutcome, Writer

Listener = Callable[[Recorded], None]


@contextlib.asynccontextmanager
async def open_ledger(
    store: Store, *, bounds: WriteQueueBounds | None = None, on_blocked: OnBlocked = lambda reason: None
) -> AsyncIterator["Ledger"]:
    """Open the ledger of *store*, created or rebuilt if missing; on exit, everything noted is committed.

    Raises `BadInput` for a ledger of a newer Shoal. *on_blocked* is called with the reason when a write has to wait,
    and with "" when it can continue.
    """
    ledger = Ledger(store, bounds or WriteQueueBounds(), on_blocked)
    try:
        await ledger.ready()
        yield ledger
    finally:
        await ledger.close()


class Ledger:
    """Writes all state, for the thread of one event loop; made by `open_ledger`."""

    def __init__(self, store: Store, bounds: WriteQueueBounds, on_blocked: OnBlocked) -> None:
        self._loop = asyncio.get_running_loop()
        self._backlog = WriteQueue(bounds)
        self._writer = Writer(store, self._backlog, self._receive, on_blocked)
        self._ended = asyncio.Event()
        self._listeners: list[Listener] = []
        self._dropped: dict[str, Output] = {}
        # SQLite blocks, so it has one thread of its own
        self._thread = threading.Thread(target=self._work, name="shoal-ledger", daemon=False)
        self._thread.start()

    @property
    def commits(self) -> int:
        """Count the transactions of the ledger so far."""
        return self._writer.commits

    async def ready(self) -> None:
        """Wait until the ledger is open; raise what prevents that."""
        await self._append(())

    async def append(self, *events: Event) -> tuple[Recorded, ...]:
        """Record *events* in one transaction, in order, and return after its commit.

        Raises `Broken` if the disk did not store them. If this call is cancelled, they may be recorded all the same.
        """
        if not events:
            return ()
        entries = tuple(_entry(event) for event in events)
        recorded = await self._append(entries)
        for entry in entries:
            if isinstance(entry.event, SessionStarted):  # its own log says whose it is, in case the ledger is lost
                self._backlog.note_first(entry.event.session, entry)
        return recorded

    async def claim(self, run: str) -> None:
        """Own *run*, whose lock is held, from now on: an owner before that wakes up again can record nothing of it."""
        await self._append((), claims=(run,))

    async def assert_owner(self, run: str) -> None:
        """Raise `RunTaken` if another process has claimed *run* since this one did; to be asked before refs move."""
        await self._append((), checks=(run,))

    def post(self, event: Event) -> None:
        """Record *event* like `append`, without waiting for its commit."""
        waiter: asyncio.Future[tuple[Recorded, ...]] = self._loop.create_future()
        waiter.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._backlog.append(Append((_entry(event),), waiter))

    def note(self, event: Event) -> None:
        """Record *event* in the log of its session, soon.

        When too much is waiting, `Output` is left out, and the next one recorded says how many bytes are missing.
        The next `flush` or `forget` raises if the disk did not store something.
        """
        session = _session(event)
        component(session)  # an invalid file name is refused here, not on the thread
        kept = self._limit_output(event) if isinstance(event, Output) else event
        if kept is not None:
            self._backlog.note(session, _entry(kept))

    async def flush(self, session: str) -> None:
        """Return when all that was noted for *session* is committed."""
        await self._mark(session, is_last=False)

    async def forget(self, session: str) -> None:
        """Flush and close the log of *session*; a later note opens it again."""
        await self._mark(session, is_last=True)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call *listener* on the loop's thread for every event after its commit, until the returned function is called.

        A listener that raises is reported to the loop's exception handler, and not called again.
        """
        self._listeners.append(listener)
        return lambda: self._unsubscribe(listener)

    async def close(self) -> None:
        """Write what is waiting and end the thread, even when cancelled meanwhile."""
        for session in tuple(self._dropped):
            self._note_dropped(session)
        self._backlog.close()
        try:
            await self._ended.wait()
        finally:
            self._thread.join()

    async def _append(
        self, entries: tuple[WriteQueueEntry, ...], claims: tuple[str, ...] = (), checks: tuple[str, ...] = ()
    ) -> tuple[Recorded, ...]:
        waiter: asyncio.Future[tuple[Recorded, ...]] = self._loop.create_future()
        self._backlog.append(Append(entries, waiter, claims, checks))
        return await waiter

    async def _mark(self, session: str, *, is_last: bool) -> None:
        component(session)
        self._note_dropped(session)
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._backlog.mark(session, NoteBarrier(waiter, is_last))
        await waiter

    def _limit_output(self, output: Output) -> Output | None:
        """Add to *output* what is missing before it, or count it as missing."""
        before = self._dropped.pop(output.session, None)
        missing = output.dropped + (before.dropped if before else 0)
        size = len(output.text.encode("utf-8", "surrogatepass"))
        if self._backlog.has_room(output.session, size):
            return replace(output, dropped=missing)
        self._dropped[output.session] = replace(output, text="", dropped=missing + size)
        return None

    def _note_dropped(self, session: str) -> None:
        """Note what is missing at the end, where no later output can say it."""
        missing = self._dropped.pop(session, None)
        if missing is not None:
            self._backlog.note(session, _entry(missing))

    def _work(self) -> None:
        try:
            self._writer.work()
        finally:
            self._call(self._ended.set)

    def _receive(self, outcome: WriteOutcome) -> None:
        self._call(lambda: self._deliver(outcome))

    def _call(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback)

    def _deliver(self, outcome: WriteOutcome) -> None:
        # waiters wake up in the loop's next iteration, so listeners see an event before its writer continues
        for answer in outcome.answers:
            answer()
        for recorded in outcome.recorded:
            for listener in tuple(self._listeners):
                self._publish(listener, recorded)

    def _publish(self, listener: Listener, recorded: Recorded) -> None:
        try:
            listener(recorded)
        except Exception as error:
            self._unsubscribe(listener)
            self._loop.call_exception_handler({"message": "a listener of the ledger failed", "exception": error})

    def _unsubscribe(self, listener: Listener) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)


def _entry(event: Event) -> WriteQueueEntry:
    return WriteQueueEntry(event, EventRow.of(event, time.time()))


def _session(event: Event) -> str:
    session = getattr(event, "session", None)
    if not isinstance(session, str):
        raise TypeError(f"{type(event).__name__} belongs to no session: append it")
    return session
