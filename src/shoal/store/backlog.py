"""What waits for the writer's thread: bounded, fair between sessions, acknowledged facts first."""

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass

from shoal.errors import Broken
from shoal.model.events import Event, Recorded
from shoal.store.database import EventRow

_BATCH = 1000
_ROW_BYTES = 200
_SHARE = 8
_LOOK_UP_SECONDS = 1.0
# Notes rest so long, unless somebody waits for them: a short session's all become one transaction.
RIPE_SECONDS = 0.1
GATHER_SECONDS = 0.004
RIPE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class BacklogBounds:
    """How much may wait; one session alone may fill an eighth of it, so that it cannot silence the others."""

    size: int = 64 * 1024 * 1024
    rows: int = 100_000


@dataclass(frozen=True, slots=True)
class BacklogEntry:
    """An event with the row that it becomes."""

    event: Event
    row: EventRow

    @property
    def size(self) -> int:
        """Estimate the bytes that it takes while it waits."""
        return len(self.row.body) + _ROW_BYTES


@dataclass(frozen=True, slots=True)
class Append:
    """Facts for the ledger, and who waits for their commit."""

    entries: tuple[BacklogEntry, ...]
    waiter: asyncio.Future[tuple[Recorded, ...]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a session's notes, and who waits until all before it is committed."""

    waiter: asyncio.Future[None]
    is_last: bool
    """Whether the session's database is then to be laid to rest."""


@dataclass(frozen=True, slots=True)
class Appends:
    """All facts that waited: one transaction."""

    appends: tuple[Append, ...]


@dataclass(frozen=True, slots=True)
class Notes:
    """Some of one session's notes: one transaction, and the mark that follows them."""

    session: str
    entries: tuple[BacklogEntry, ...]
    mark: Mark | None


@dataclass(slots=True)
class _SessionQueue:
    items: deque[BacklogEntry | Mark]
    since: float
    size: int = 0


class Backlog:
    """A queue between the loop's thread, which adds, and the writer's, which takes."""

    def __init__(self, bounds: BacklogBounds) -> None:
        self._bounds = bounds
        self._changed = threading.Condition()  # guards all that follows
        self._appends: list[Append] = []
        self._lines: dict[str, _SessionQueue] = {}
        self._ripe: dict[str, None] = {}
        self._size = 0
        self._rows = 0
        self._is_closed = False
        self._crowd = 0
        self._is_gathering = False

    def has_room(self, session: str, size: int) -> bool:
        """Say whether *session* may add a note of *size* bytes that could as well be left out."""
        with self._changed:
            line = self._lines.get(session)
            own_size, own_rows = (line.size, len(line.items)) if line else (0, 0)
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

    def note(self, session: str, entry: BacklogEntry) -> None:
        """Add a note of *session*, whether there is room or not."""
        with self._changed:
            line = self._add(session, entry)
            line.size += entry.size
            self._size += entry.size
            self._rows += 1
            if line.size >= RIPE_BYTES:
                self._ripen(session)
            elif len(self._lines) == len(line.items) == 1:
                self._changed.notify()  # now it is known until when to wait

    def mark(self, session: str, mark: Mark) -> None:
        """Add a mark behind all notes of *session*."""
        with self._changed:
            self._add(session, mark)
            self._ripen(session)

    def close(self) -> None:
        """Take nothing more in; what waits is still given out."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def take(self) -> Appends | Notes | None:
        """Wait for work; `None` says that there will be no more."""
        with self._changed:
            while not (self._appends or self._is_closed or self._next()):
                self._changed.wait(self._patience())
                # a loop that was torn down without leaving `opened` must not keep the interpreter from ending
                self._is_closed = self._is_closed or not threading.main_thread().is_alive()
            if self._appends:
                self._gather()
                return self._all_appends()
            session = self._next()
            return self._some_notes(session) if session else None

    def _add(self, session: str, item: BacklogEntry | Mark) -> _SessionQueue:
        self._check_open()
        line = self._lines.setdefault(session, _SessionQueue(deque(), time.monotonic()))
        line.items.append(item)
        return line

    def _ripen(self, session: str) -> None:
        self._ripe.setdefault(session)
        if not self._is_gathering:
            self._changed.notify()

    def _next(self) -> str | None:
        """Give whose turn it is: who has rested long enough, the oldest first, else one that somebody waits for."""
        oldest = next(iter(self._lines), None)
        if oldest and (self._is_closed or self._lines[oldest].since + RIPE_SECONDS <= time.monotonic()):
            return oldest
        return next(iter(self._ripe), None)

    def _patience(self) -> float:
        oldest = next(iter(self._lines.values()), None)
        return _LOOK_UP_SECONDS if oldest is None else max(0.0, oldest.since + RIPE_SECONDS - time.monotonic())

    def _check_open(self) -> None:
        if self._is_closed:
            raise Broken("the ledger is closed: nothing can be recorded any more")

    def _gather(self) -> None:
        """Where several came together before, wait for more of them: a commit costs the same for one and for many."""
        if self._crowd > 1 and not self._is_closed:
            self._is_gathering = True
            self._changed.wait(GATHER_SECONDS)
            self._is_gathering = False

    def _all_appends(self) -> Appends:
        taken, self._appends = self._appends, []
        self._crowd = len(taken)
        return Appends(tuple(taken))

    def _some_notes(self, session: str) -> Notes:
        line = self._lines.pop(session)
        entries, mark = _head(line.items)
        freed = sum(entry.size for entry in entries)
        line.size -= freed
        self._size -= freed
        self._rows -= len(entries)
        self._ripe.pop(session, None)
        if line.items:  # last in turn now
            line.since = time.monotonic()
            self._lines[session] = line
            self._ripe[session] = None
        return Notes(session, entries, mark)


def _head(items: deque[BacklogEntry | Mark]) -> tuple[tuple[BacklogEntry, ...], Mark | None]:
    """Take up to a batch of notes, and the first mark among them as the end."""
    entries: list[BacklogEntry] = []
    while items and len(entries) < _BATCH:
        item = items.popleft()
        if isinstance(item, Mark):
            return tuple(entries), item
        entries.append(item)
    return tuple(entries), None
