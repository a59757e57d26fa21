"""One SQLite database of events: its shape, and how it is opened and written."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal import __version__
from shoal.errors import BadInput, Broken, ShoalError
from shoal.store.kind import EventRow
from shoal.store.lock import hold_lock_blocking

SCHEMA = 1
BUSY_SECONDS = 5.0
LOCKED_SECONDS = 3600.0
_PAUSE = 0.05
_LOCK_SECONDS = 30.0
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TABLES = (
    "CREATE TABLE IF NOT EXISTS events"
    " (seq INTEGER PRIMARY KEY, at REAL, run TEXT, session TEXT, kind TEXT, body TEXT)",
    "CREATE INDEX IF NOT EXISTS events_by_run ON events (run)",
    f"PRAGMA user_version = {SCHEMA}",
)
_INSERT = "INSERT INTO events (at, run, session, kind, body) VALUES (?, ?, ?, ?, ?)"


OnWait = Callable[[Path], None]
"""Called on the writer's thread when another program has held the database for some seconds."""


@dataclass(frozen=True, slots=True)
class Durability:
    """How a database is written."""

    journal: str
    synchronous: str


LEDGER = Durability(journal="WAL", synchronous="FULL")
"""A commit survives a power failure, and readers never wait."""
SESSION = Durability(journal="DELETE", synchronous="OFF")
"""A commit survives a kill, and makes one small file that needs no other while nobody writes."""


class Database:
    """A database that is opened when it is first written, and again after the disk has failed it.

    For the writer's thread only. *lock* keeps processes apart while one makes or repairs the database:
    SQLite's own change into WAL mode fails for the second of two that try it at once.
    """

    def __init__(self, path: Path, durability: Durability, *, lock: Path, on_wait: OnWait = lambda path: None) -> None:
        self._path = path
        self._on_wait = on_wait
        self._durability = durability
        self._lock = lock
        self._connection: sqlite3.Connection | None = None
        self._file: os.stat_result | None = None
        self._refusal: ShoalError | None = None

    def write(self, rows: Sequence[EventRow]) -> list[int]:
        """Write *rows* as one transaction and return their numbers once it is committed.

        Another program that holds the database is waited for: what an agent did is not lost to a backup.
        """
        end, is_said = time.monotonic() + LOCKED_SECONDS, False
        while True:
            try:
                return self._write(rows)
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                if not is_said:
                    self._on_wait(self._path)
                is_said = True
                time.sleep(_PAUSE)

    def close(self) -> None:
        """Close, to be opened again by the next write; whoever closes the ledger last leaves no `-wal` beside it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _write(self, rows: Sequence[EventRow]) -> list[int]:
        if self._connection is None:
            with hold_lock_blocking(self._lock, timeout=_LOCK_SECONDS):
                self._open()
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
            self._connection = _connect(self._path, self._durability)
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


def _connect(path: Path, durability: Durability) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        _prepare(path, connection, durability)
    except BaseException as error:
        # moved before it is closed: SQLite's close would first rewrite what is left of it, and remove its log
        kept = _move_aside(path) if _is_damage(error) else None
        connection.close()
        if kept is None:
            raise
        raise Broken(f"{path} was damaged and is kept as {kept}; running again starts a fresh one") from error
    return connection


def _prepare(path: Path, connection: sqlite3.Connection, durability: Durability) -> None:
    version = check_version(path, connection)
    connection.execute(f"PRAGMA journal_mode = {durability.journal}")
    connection.execute(f"PRAGMA synchronous = {durability.synchronous}")
    if version < SCHEMA:
        _create_tables(connection)
    connection.execute("SELECT max(seq) FROM events").fetchone()


def _is_damage(error: BaseException) -> bool:
    # by SQLite's code: a full disk or a lock is a `DatabaseError` too, and no reason to put a ledger away
    return isinstance(error, sqlite3.DatabaseError) and primary_code(error) in _DAMAGE


def _create_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("COMMIT")


def _move_aside(path: Path) -> Path:
    number = 1
    while path.with_name(f"{path.name}.corrupt-{number}").exists():
        number += 1
    kept = path.with_name(f"{path.name}.corrupt-{number}")
    # the database last: a log left behind without it would be replayed into the fresh one
    for suffix in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{kept}{suffix}")
    return kept


def _insert(connection: sqlite3.Connection, rows: Sequence[EventRow]) -> list[int]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        numbers = [_insert_row(connection, row) for row in rows]
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.rollback()
        raise
    return numbers


def _insert_row(connection: sqlite3.Connection, row: EventRow) -> int:
    number = connection.execute(_INSERT, (row.at, row.run, row.session, row.kind, row.body)).lastrowid
    if number is None:
        raise AssertionError("an insert has a row")
    return number
