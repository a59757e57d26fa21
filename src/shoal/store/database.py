"""One SQLite database of events: its schema, and how it is opened and written."""

import contextlib
import errno
import os
import platform
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal import __version__
from shoal.errors import BadInput, Blocked, Broken, RunTaken, ShoalError
from shoal.store.kind import EventRow
from shoal.store.lock import hold_lock_blocking
from shoal.store.reserve import release_reserve

SCHEMA = 2
BUSY_SECONDS = 5.0
CHECKED_BYTES = 32 * 2**20
_LOCK_SECONDS = 30.0
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_EVENTS = (
    "CREATE TABLE IF NOT EXISTS events"
    " (seq INTEGER PRIMARY KEY, at REAL, run TEXT, session TEXT, kind TEXT, body TEXT, epoch INTEGER)"
)
_OWNERS = "CREATE TABLE owners (run TEXT PRIMARY KEY, epoch INTEGER NOT NULL, pid INTEGER, host TEXT)"
_BY_SESSION = "CREATE INDEX sessions_started ON events (session, run) WHERE kind = 'SessionStarted'"
MIGRATIONS = {1: ("ALTER TABLE events ADD COLUMN epoch INTEGER", _OWNERS, _BY_SESSION)}
"""What makes the next schema of the one with this number; readers of this Shoal understand both."""
_INSERT = "INSERT INTO events (at, run, session, kind, body, epoch) VALUES (?, ?, ?, ?, ?, ?)"
_CLAIM = (
    "INSERT INTO owners (run, epoch, pid, host) VALUES (?, 1, ?, ?)"
    " ON CONFLICT (run) DO UPDATE SET epoch = epoch + 1, pid = excluded.pid, host = excluded.host"
)
_OWNER = "SELECT epoch, pid, host FROM owners WHERE run = ?"


_CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_PROBE_BYTES = 2**16
Seed = Callable[[Path | None], Iterable[EventRow]]
"""Returns the rows that a new database begins with; its argument is where a damaged one will be kept."""


@dataclass(frozen=True, slots=True)
class DatabaseKind:
    """How a database is created and written."""

    journal: str
    synchronous: str
    tables: tuple[str, ...]
    """The statements that create it."""


LEDGER = DatabaseKind(
    journal="WAL",
    synchronous="FULL",
    tables=(_EVENTS, "CREATE INDEX IF NOT EXISTS events_by_run ON events (run)", _OWNERS, _BY_SESSION),
)
"""A commit survives a power failure, and readers never wait."""
SESSION = DatabaseKind(journal="DELETE", synchronous="OFF", tables=(_EVENTS,))
"""A commit survives a kill, and leaves a single small file while nothing is written.

Each session creates one, so it has only what is read of it: events in their order.
"""


class Database:
    """A database that is opened at its first write, and again after the disk has failed.

    Only for the writer's thread. *lock* excludes other processes while one creates or repairs the database: SQLite's
    own change into WAL mode fails for the second of two that try it at once.
    """

    def __init__(
        self, path: Path, kind: DatabaseKind, *, lock: Path, seed: Seed | None = None, reserve: Path | None = None
    ) -> None:
        self._path = path
        self._seed = seed
        self._reserve = reserve
        self._kind = kind
        self._lock = lock
        self._connection: sqlite3.Connection | None = None
        self._epochs: dict[str, int] = {}
        self._file = -1
        self._refusal: ShoalError | None = None

    def write(self, rows: Sequence[EventRow], claims: Sequence[str] = (), checks: Sequence[str] = ()) -> list[int]:
        """Write *rows* as one transaction and return their numbers once it is committed.

        With it this process becomes the owner of the runs in *claims*. Raises `RunTaken` where another process has
        claimed a run since, which has rows or is in *checks*. Raises `Blocked` where the same may succeed later; the
        space that was reserved for the ledger is used before.
        """
        try:
            return self._try_write(rows, claims, checks)
        except Blocked:
            if self._reserve is None or not release_reserve(self._reserve):
                raise
        return self._try_write(rows, claims, checks)

    def forget(self, run: str, last: int) -> bool:
        """Remove all events of *run* if the last one is number *last* still; return whether it was."""
        self.write(())
        connection = self._connection
        if connection is None:
            raise AssertionError("a database that was written is open")
        with _transaction(connection):
            if connection.execute("SELECT max(seq) FROM events WHERE run = ?", (run,)).fetchone() != (last,):
                return False
            connection.execute("DELETE FROM events WHERE run = ?", (run,))
            connection.execute("DELETE FROM owners WHERE run = ?", (run,))
        return True

    def close(self) -> None:
        """Close it until the next write; the last one to close the ledger leaves no `-wal` file."""
        connection, self._connection = self._connection, None
        file, self._file = self._file, -1
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        if file >= 0:
            os.close(file)

    def _try_write(self, rows: Sequence[EventRow], claims: Sequence[str], checks: Sequence[str]) -> list[int]:
        try:
            return self._write(rows, claims, checks)
        except sqlite3.Error as error:
            if why := _passing_reason(self._path, error):
                raise Blocked(why) from error
            if primary_code(error) in _CLOSED:
                raise Broken(f"{self._path} cannot be written: {error}; make it writable, then run again") from error
            raise
        except OSError as error:
            if error.errno in _PASSING:
                raise Blocked(f"{self._path} cannot be written: {error.strerror}") from error
            raise

    def _write(self, rows: Sequence[EventRow], claims: Sequence[str], checks: Sequence[str]) -> list[int]:
        if self._connection is None:
            with hold_lock_blocking(self._lock, timeout=_LOCK_SECONDS):
                self._open()
        try:
            return self._insert(rows, claims, checks)
        except sqlite3.Error as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY:
                self.close()
            raise

    def _open(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            self._connection = _connect(self._path, self._kind, self._seed)
        except ShoalError as error:
            self._refusal = error
            raise
        # with a descriptor that has no part in SQLite's locks, because closing any other would release them
        self._file = os.open(self._path, os.O_PATH | os.O_CLOEXEC)

    def _insert(self, rows: Sequence[EventRow], claims: Sequence[str], checks: Sequence[str]) -> list[int]:
        connection = self._connection
        if connection is None:
            raise AssertionError("an open database has a connection")
        self._check_place()
        if not (rows or claims or checks):
            return []
        with _transaction(connection):
            epochs = self._epochs | {run: _claim(connection, run) for run in claims}
            written = {*checks, *(row.run for row in rows)}
            _check_owned(connection, {run: epoch for run, epoch in epochs.items() if run in written})
            numbers = [_insert_row(connection, row, epochs.get(row.run)) for row in rows]
        self._epochs = epochs
        return numbers

    def _check_place(self) -> None:
        # SQLite continues to write to a deleted file: that would be a false acknowledgement
        here = os.fstat(self._file)
        try:
            is_in_place = os.path.samestat(here, self._path.stat())
        except OSError as error:
            if here.st_nlink > 0:  # its folder was moved, or the disk is not mounted
                raise Blocked(f"{self._path} no longer exists: {error.strerror}") from error
            is_in_place = False
        if not is_in_place:
            self.close()
            raise Broken(f"{self._path} was removed or replaced while Shoal wrote to it; its contents are lost")


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code of *error*."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _passing_reason(path: Path, error: sqlite3.Error) -> str | None:
    """Return why *path* cannot be written now, if that may pass; a file beside it shows what SQLite does not report."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_BUSY:
        return f"another program has locked {path}"
    if code == sqlite3.SQLITE_FULL:
        return f"the disk of {path} is full"
    if code not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return None
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as reason:
        return f"{path} cannot be written: {reason.strerror}" if reason.errno in _PASSING else None
    return None


def check_version(path: Path, connection: sqlite3.Connection) -> int:
    """Read the version of the schema; raise `BadInput` if it is newer than this Shoal supports."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA:
        raise BadInput(
            f"{path} was written by a newer Shoal: it needs one that knows schema {version}, and this one,"
            f" {__version__}, knows up to {SCHEMA}; upgrade Shoal"
        )
    return version


def _connect(path: Path, kind: DatabaseKind, seed: Seed | None) -> sqlite3.Connection:
    """Open *path*; a damaged one is moved aside, and a new one begins with the rows of *seed*."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        _prepare(path, connection, kind, () if seed is None else _lazily(seed))
    except BaseException as error:
        if not _is_damage(error):
            connection.close()
            raise
        kept = _name_aside(path)
        try:
            rows = () if seed is None else tuple(seed(kept))
            # moved before it is closed: SQLite's close would first rewrite what is left of it, and remove its log
            _move_aside(path, kept)
        finally:
            connection.close()
        if seed is None:
            raise Broken(f"{path} was damaged and is kept as {kept}; running again starts a fresh one") from error
        return _connect(path, kind, lambda _: rows)
    return connection


def _lazily(seed: Seed) -> Iterable[EventRow]:
    yield from seed(None)


def _prepare(path: Path, connection: sqlite3.Connection, kind: DatabaseKind, seed: Iterable[EventRow]) -> None:
    version = check_version(path, connection)
    connection.execute(f"PRAGMA journal_mode = {kind.journal}")
    connection.execute(f"PRAGMA synchronous = {kind.synchronous}")
    if version == 0:
        _create_tables(connection, kind.tables, seed)
        return
    _check_whole(path, connection)
    if version < SCHEMA:
        if kind == LEDGER:
            _back_up(connection, path.with_name(f"{path.name}.schema-{version}"))
        with _transaction(connection):
            _migrate(connection, version)


def _back_up(connection: sqlite3.Connection, kept: Path) -> None:
    """Copy the database to *kept*, whole or not at all, in the place of what an earlier attempt left there."""
    draft = kept.with_name(f"{kept.name}.part")
    draft.unlink(missing_ok=True)
    try:
        connection.execute("VACUUM INTO ?", (os.fsdecode(draft),))
        with draft.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    draft.replace(kept)


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    for number in range(version, SCHEMA):
        for statement in MIGRATIONS[number]:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _check_whole(path: Path, connection: sqlite3.Connection) -> None:
    """Read the newest row, and check all pages if they are few: that takes a millisecond per megabyte."""
    connection.execute("SELECT max(seq) FROM events").fetchone()
    if path.stat().st_size > CHECKED_BYTES:
        return
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise DatabaseDamaged(f"{path}: {verdict}")


class DatabaseDamaged(sqlite3.DatabaseError):
    """SQLite found inconsistent pages."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _is_damage(error: BaseException) -> bool:
    # by SQLite's code: a full disk or a lock is a `DatabaseError` too, and no reason to move a ledger aside
    return isinstance(error, sqlite3.DatabaseError) and primary_code(error) in DAMAGE


def _create_tables(connection: sqlite3.Connection, tables: Iterable[str], seed: Iterable[EventRow]) -> None:
    with _transaction(connection):
        for statement in tables:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        for row in seed:
            _insert_row(connection, row, None)


def _name_aside(path: Path) -> Path:
    number = 1
    while path.with_name(f"{path.name}.corrupt-{number}").exists():
        number += 1
    return path.with_name(f"{path.name}.corrupt-{number}")


def _move_aside(path: Path, kept: Path) -> None:
    # the database last: a log left behind without it would be replayed into the new one
    for suffix in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{kept}{suffix}")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.rollback()
        raise


def _claim(connection: sqlite3.Connection, run: str) -> int:
    """Make this process the owner of *run*, and return its epoch: how many owners there were until now."""
    connection.execute(_CLAIM, (run, os.getpid(), platform.node()))
    return int(connection.execute(_OWNER, (run,)).fetchone()[0])


def _check_owned(connection: sqlite3.Connection, epochs: Mapping[str, int]) -> None:
    """Refuse to write about a run that another process has taken over; a rebuilt ledger knows no owners."""
    for run, epoch in epochs.items():
        now, pid, host = connection.execute(_OWNER, (run,)).fetchone() or (epoch, 0, "")
        if now != epoch:
            raise RunTaken(run, pid, host)


def _insert_row(connection: sqlite3.Connection, row: EventRow, epoch: int | None) -> int:
    values = (row.at, row.run, row.session, row.kind, row.body, epoch)
    number = connection.execute(_INSERT, values).lastrowid
    if number is None:
        raise AssertionError("an insert has a row")
    return number
