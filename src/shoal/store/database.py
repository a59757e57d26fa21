"""One SQLite database of events: its shape, and how it is opened, written and laid to rest."""

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shoal import __version__
from shoal.errors import BadInput, Broken, ShoalError
from shoal.model.events import Event
from shoal.store.codec import encode
from shoal.store.lock import locked

SCHEMA = 1
BUSY_SECONDS = 5.0
_ATTEMPTS = 4
_PAUSE = 0.05
_LOCK_SECONDS = 30.0
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_SHAPE = (
    "CREATE TABLE IF NOT EXISTS events"
    " (seq INTEGER PRIMARY KEY, at REAL, run TEXT, session TEXT, kind TEXT, body TEXT)",
    "CREATE INDEX IF NOT EXISTS events_by_run ON events (run)",
    f"PRAGMA user_version = {SCHEMA}",
)
_INSERT = "INSERT INTO events (at, run, session, kind, body) VALUES (?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as it lies in its table."""

    at: float
    run: str
    session: str | None
    kind: str
    body: str

    @classmethod
    def of(cls, event: Event, at: float) -> Self:
        """Make the row of *event*."""
        session = getattr(event, "session", None)
        named = None if session is None else _storable(session)
        return cls(at, _storable(event.run), named, type(event).__name__, encode(event))


class Database:
    """A database that is opened when it is first written, and again after the disk has failed it.

    For the writer's thread only. *lock* keeps processes apart while one makes, mends or leaves the database:
    SQLite's own change into WAL mode fails for the second of two that try it at once.
    """

    def __init__(self, path: Path, *, synchronous: str, lock: Path) -> None:
        self._path = path
        self._synchronous = synchronous
        self._lock = lock
        self._connection: sqlite3.Connection | None = None
        self._file: os.stat_result | None = None
        self._refusal: ShoalError | None = None

    def write(self, rows: Sequence[EventRow]) -> list[int]:
        """Write *rows* as one transaction and return their numbers once it is committed."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._write(rows)
            except sqlite3.OperationalError as error:
                if attempt == _ATTEMPTS or primary_code(error) != sqlite3.SQLITE_BUSY:
                    raise
                time.sleep(_PAUSE)
        raise AssertionError("the last attempt returns or raises")

    def write_whole(self, rows: Sequence[EventRow], mould: "Mould") -> list[int] | None:
        """Write a database that holds *rows* and nothing else, at rest from the start; `None` where that cannot be.

        It gets its name when it is whole, so it needs no log of its own: a sixth of what opening and leaving one costs.
        """
        if self._connection is not None or self._refusal is not None or os.path.exists(self._path):  # noqa: PTH110
            return None
        fresh = f"{self._path}.new"
        try:
            image, numbers = mould.fill(self._path.parent, rows)
            _write(fresh, image)
            os.link(fresh, self._path)  # never over one that somebody made meanwhile
        except (OSError, sqlite3.Error):  # the usual way may still go, or says what is wrong
            return None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)  # noqa: PTH108 - half the time of Path.unlink
        return numbers

    def write_last(self, rows: Sequence[EventRow]) -> list[int] | None:
        """Add *rows* to a database at rest, and leave it at rest; `None` where it is not, or somebody reads it."""
        is_resting = self._connection is None and self._refusal is None and self._path.exists()
        if not is_resting or Path(f"{self._path}-wal").exists():
            return None
        with contextlib.closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as connection:
            try:
                check_version(self._path, connection)
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
                return _insert(connection, rows)
            except sqlite3.Error:  # somebody reads it just now, or worse: the usual way waits, or says what is wrong
                return None

    def open(self) -> None:
        """Open, if it is not open yet."""
        if self._connection is None:
            with locked(self._lock, timeout=_LOCK_SECONDS):
                self._open()

    def rest(self) -> None:
        """Close for good: where nobody else has it open, no `-wal` is left, and readers will not need one."""
        if self._connection is None:
            return
        try:
            # kept out of WAL mode: a read-only reader would make -wal and -shm files there, and leave them
            with contextlib.suppress(sqlite3.Error), locked(self._lock, timeout=_LOCK_SECONDS):
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA journal_mode = DELETE")
        finally:
            self.close()

    def close(self) -> None:
        """Close, to be opened again by the next write."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _write(self, rows: Sequence[EventRow]) -> list[int]:
        self.open()
        try:
            return self._insert(rows)
        except sqlite3.Error as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY:
                self.close()
            raise

    def _open(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            self._connection = _connect(self._path, self._synchronous)
        except ShoalError as error:
            self._refusal = error
            raise
        self._file = self._path.stat()

    def _insert(self, rows: Sequence[EventRow]) -> list[int]:
        if self._connection is None or not self._is_in_place():
            self.close()
            raise Broken(f"{self._path} was removed or replaced while Shoal wrote to it; what it held is lost")
        return _insert(self._connection, rows) if rows else []

    def _is_in_place(self) -> bool:
        # SQLite goes on writing to a file without a name: that would be a false acknowledgement
        try:
            return self._file is not None and os.path.samestat(self._file, self._path.stat())
        except OSError:
            return False


def primary_code(error: sqlite3.Error) -> int:
    """Give SQLite's primary result code of *error*."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def check_version(path: Path, connection: sqlite3.Connection) -> int:
    """Read the version of the schema; raise `BadInput` when it is newer than what this Shoal knows."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA:
        raise BadInput(
            f"{path} was written by a newer Shoal: it needs one that knows schema {version}, and this one,"
            f" {__version__}, knows up to {SCHEMA}; upgrade Shoal"
        )
    return version


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        _prepare(path, connection, synchronous)
    except BaseException as error:
        # moved before it is closed: SQLite's close would first rewrite what is left of it, and remove its log
        kept = _move_aside(path) if _is_damage(error) else None
        connection.close()
        if kept is None:
            raise
        raise Broken(f"{path} was damaged and is kept as {kept}; running again starts a fresh one") from error
    return connection


def _prepare(path: Path, connection: sqlite3.Connection, synchronous: str) -> None:
    version = check_version(path, connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    if version < SCHEMA:
        _shape(connection)
    connection.execute("SELECT max(seq) FROM events").fetchone()


def _is_damage(error: BaseException) -> bool:
    # by SQLite's code: a full disk or a lock is a `DatabaseError` too, and no reason to put a ledger away
    return isinstance(error, sqlite3.DatabaseError) and primary_code(error) in _DAMAGE


def _shape(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SHAPE:
        connection.execute(statement)
    connection.execute("COMMIT")


class Mould:
    """Makes the bytes of databases that need no more than a few rows; for one thread, and one place at a time."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._blank = b""

    def fill(self, place: Path, rows: Sequence[EventRow]) -> tuple[bytes, list[int]]:
        """Give the bytes of a database with *rows*, and their numbers."""
        self._blank = self._blank or _blank(place)
        self._connection.deserialize(self._blank)  # a new one each time: nothing of the last stays in its pages
        numbers = _insert(self._connection, rows)
        return self._connection.serialize(), numbers

    def close(self) -> None:
        """Let it go."""
        self._connection.close()


def _blank(place: Path) -> bytes:
    """Give the bytes of a database without rows; it is made below *place*, where there is room for it."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        path = Path(folder) / "blank"
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            _shape(connection)
        return path.read_bytes()


def _write(file: str, content: bytes) -> None:
    """Write a whole file; as with `synchronous = NORMAL`, a power cut may take it, and leave an empty one."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)


def _move_aside(path: Path) -> Path:
    number = 1
    while path.with_name(f"{path.name}.corrupt-{number}").exists():
        number += 1
    kept = path.with_name(f"{path.name}.corrupt-{number}")
    # the database last: a log left behind without it would be replayed into the fresh one
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{kept}{suffix}")
    return kept


def _insert(connection: sqlite3.Connection, rows: Sequence[EventRow]) -> list[int]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        numbers = [_number(connection, row) for row in rows]
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.rollback()
        raise
    return numbers


def _number(connection: sqlite3.Connection, row: EventRow) -> int:
    number = connection.execute(_INSERT, (row.at, row.run, row.session, row.kind, row.body)).lastrowid
    if number is None:
        raise AssertionError("an insert has a row")
    return number


def _storable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
