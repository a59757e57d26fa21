"""The queue to the writer's thread: bounded, fair between sessions, acknowledged facts first."""

import asyncio
import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass

from shoal.errors import Broken
from shoal.model.events import Event, Recorded
from shoal.store.kind import EventRow

_BATCH = 1000
_ROW_BYTES = 200
_SHARE = 8
_CHECK_SECONDS = 1.0
# How long notes wait, unless somebody needs them: all notes of a short session become one transaction.
NOTE_DELAY_SECONDS = 0.1
# How long the first note of a session waits for the next: of 200 that start together, each log is opened once.
FIRST_DELAY_SECONDS = 3.0
GATHER_SECONDS = 0.004
NOTE_DELAY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class WriteQueueBounds:
    """How much may wait; a single session may fill an eighth of it, so that it cannot block the others."""

    size: int = 64 * 1024 * 1024
    rows: int = 100_000


@dataclass(frozen=True, slots=True)
class WriteQueueEntry:
    """An event with the row to be written."""

    event: Event
    row: EventRow

    @property
    def size(self) -> int:
        """Estimate its size in memory."""
        return len(self.row.body) + _ROW_BYTES


@dataclass(frozen=True, slots=True)
class Append:
    """Facts for the ledger, and the callers that wait for their commit."""

    entries: tuple[WriteQueueEntry, ...]
    waiter: asyncio.Future[tuple[Recorded, ...]]
    claims: tuple[str, ...] = ()
    """Runs that this process takes over."""
    checks: tuple[str, ...] = ()
    """Runs that this process must own still."""


@dataclass(frozen=True, slots=True)
class NoteBarrier:
    """A position in a session's notes, and the caller that waits until everything before it is committed."""

    waiter: asyncio.Future[None]
    is_last: bool
    """Whether the session's log is to be closed then."""


@dataclass(frozen=True, slots=True)
class Appends:
    """All facts that were waiting: one transaction."""

    appends: tuple[Append, ...]


@dataclass(frozen=True, slots=True)
class Notes:
    """Some of a session's notes: one transaction, and the barrier after them."""

    session: str
    entries: tuple[WriteQueueEntry, ...]
    mark: NoteBarrier | None


@dataclass(slots=True)
class _SessionQueue:
    items: deque[WriteQueueEntry | NoteBarrier]
    since: float
    size: int = 0


@dataclass(frozen=True, slots=True)
class _First:
    entry: WriteQueueEntry
    since: float


class WriteQueue:
    """A queue between the event loop's thread, which adds, and the writer's, which takes."""

    def __init__(self, bounds: WriteQueueBounds) -> None:
        self._bounds = bounds
        self._changed = threading.Condition()  # guards everything below
        self._appends: list[Append] = []
        self._queues: dict[str, _SessionQueue] = {}
        self._due: dict[str, None] = {}
        self._firsts: dict[str, _First] = {}
        self._size = 0
        self._rows = 0
        self._is_closed = False
        self._last_count = 0
        self._is_gathering = False

    def has_room(self, session: str, size: int) -> bool:
        """Return whether *session* may add a droppable note of *size* bytes."""
        with self._changed:
            queue = self._queues.get(session)
            own_size, own_rows = (queue.size, len(queue.items)) if queue else (0, 0)
            return (
                self._size + size <= self._bounds.size
                and own_size + size <= self._bounds.size // _SHARE
                and self._rows < self._bounds.rows
                and own_rows < max(1, self._bounds.rows // _SHARE)
            )

    def append(self, append: Append) -> None:
        """Add facts for the ledger."""
        with self._changed:
            self._check_open()
            self._appends.append(append)
            if not self._is_gathering:
                self._changed.notify()

    def note(self, session: str, entry: WriteQueueEntry) -> None:
        """Add a note of *session*, whether there is room or not."""
        with self._changed:
            queue = self._add_note(session, entry)
            if queue.size >= NOTE_DELAY_BYTES:
                self._make_due(session)
            elif len(self._queues) == len(queue.items) == 1:
                self._changed.notify()  # now the writer knows how long to wait

    def note_first(self, session: str, entry: WriteQueueEntry) -> None:
        """Add the first note of *session*, which is written with its next one, or soon."""
        with self._changed:
            if session in self._firsts:
                self._add_note(session, entry)
                return
            self._check_open()
            self._firsts[session] = _First(entry, time.monotonic())
            if len(self._firsts) == 1:
                self._changed.notify()  # now the writer knows how long to wait

    def mark(self, session: str, mark: NoteBarrier) -> None:
        """Add a barrier after all notes of *session*."""
        with self._changed:
            self._add(session, mark)
            self._make_due(session)

    def close(self) -> None:
        """Accept nothing more; what is waiting is still taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def wait_for_close(self, seconds: float) -> bool:
        """Wait up to *seconds* for the queue to be closed, and return whether it is."""
        with self._changed:
            if not self._is_closed:
                self._changed.wait_for(lambda: self._is_closed, seconds)
            return self._is_closed or not threading.main_thread().is_alive()

    def take(self) -> Appends | Notes | None:
        """Wait for work; `None` means that there will be no more."""
        with self._changed:
            while not self._has_work():
                self._changed.wait(self._wait_seconds())
                # a loop that was torn down without closing the ledger must not keep the interpreter from exiting
                self._is_closed = self._is_closed or not threading.main_thread().is_alive()
            if self._appends:
                self._gather()
                return self._all_appends()
            session = self._next()
            return self._some_notes(session) if session else None

    def _has_work(self) -> bool:
        self._push_late_firsts()
        return bool(self._appends or self._is_closed or self._next())

    def _push_late_firsts(self) -> None:
        """Make those notes due that have waited long enough for another of their session."""
        until = time.monotonic() - FIRST_DELAY_SECONDS
        late = itertools.takewhile(lambda name: self._is_closed or self._firsts[name].since <= until, self._firsts)
        for session in tuple(late):
            self._push_first(session)
            self._due.setdefault(session)

    def _add_note(self, session: str, entry: WriteQueueEntry) -> _SessionQueue:
        queue = self._add(session, entry)
        self._count(queue, entry)
        return queue

    def _add(self, session: str, item: WriteQueueEntry | NoteBarrier) -> _SessionQueue:
        self._check_open()
        if session in self._firsts:
            self._push_first(session)
        return self._push(session, item)

    def _push_first(self, session: str) -> None:
        entry = self._firsts.pop(session).entry
        self._count(self._push(session, entry), entry)

    def _push(self, session: str, item: WriteQueueEntry | NoteBarrier) -> _SessionQueue:
        queue = self._queues.setdefault(session, _SessionQueue(deque(), time.monotonic()))
        queue.items.append(item)
        return queue

    def _count(self, queue: _SessionQueue, entry: WriteQueueEntry) -> None:
        queue.size += entry.size
        self._size += entry.size
        self._rows += 1

    def _make_due(self, session: str) -> None:
        self._due.setdefault(session)
        if not self._is_gathering:
            self._changed.notify()

    def _next(self) -> str | None:
        """Choose the session to write: the one that has waited longest, if long enough, else one that is due."""
        oldest = next(iter(self._queues), None)
        if oldest and (self._is_closed or self._queues[oldest].since + NOTE_DELAY_SECONDS <= time.monotonic()):
            return oldest
        return next(iter(self._due), None)

    def _wait_seconds(self) -> float:
        now = time.monotonic()
        oldest, first = next(iter(self._queues.values()), None), next(iter(self._firsts.values()), None)
        notes = _CHECK_SECONDS if oldest is None else oldest.since + NOTE_DELAY_SECONDS - now
        firsts = _CHECK_SECONDS if first is None else first.since + FIRST_DELAY_SECONDS - now
        return max(0.0, min(notes, firsts))

    def _check_open(self) -> None:
        if self._is_closed:
            raise Broken("the ledger is closed: nothing more can be recorded")

    def _gather(self) -> None:
        """If several facts arrived together before, wait for more: one commit costs the same for any number."""
        if self._last_count > 1 and not self._is_closed:
            self._is_gathering = True
            self._changed.wait(GATHER_SECONDS)
            self._is_gathering = False

    def _all_appends(self) -> Appends:
        taken, self._appends = self._appends, []
        self._last_count = len(taken)
        return Appends(tuple(taken))

    def _some_notes(self, session: str) -> Notes:
        queue = self._queues.pop(session)
        entries, mark = _head(queue.items)
        freed = sum(entry.size for entry in entries)
        queue.size -= freed
        self._size -= freed
        self._rows -= len(entries)
        self._due.pop(session, None)
        if queue.items:  # its turn comes last now
            queue.since = time.monotonic()
            self._queues[session] = queue
            self._due[session] = None
        return Notes(session, entries, mark)


def _head(items: deque[WriteQueueEntry | NoteBarrier]) -> tuple[tuple[WriteQueueEntry, ...], NoteBarrier | None]:
    """Take up to a batch of notes, ending at the first barrier."""
    entries: list[WriteQueueEntry] = []
    while items and len(entries) < _BATCH:
        item = items.popleft()
        if isinstance(item, NoteBarrier):
            return tuple(entries), item
        entries.append(item)
    return tuple(entries), None
