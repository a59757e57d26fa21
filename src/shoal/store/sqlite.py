"""The SQLite store: `.shoal/ledger.db`, and a database for each session."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from shoal.errors import Broken
from shoal.model.events import Recorded, RunPlanned
from shoal.store.codec import UnknownEvent, decode
from shoal.store.database import DAMAGE, LEDGER, SESSION, Database, check_version, primary_code
from shoal.store.kind import LASTING, TALK, RunSize
from shoal.store.paths import StatePaths
from shoal.store.rebuild import OnRebuilt, rebuild

PAGE_ROWS = 1000
READ_SECONDS = 120.0
"""How long a reading waits for a program that has the ledger to itself; our own writers keep nobody from reading."""
_Row = tuple[int, float, str, str]
_Only = Mapping[str, str | None]
"""Columns and their required values; `None` means any."""
_UNENDED = (
    "SELECT seq, at, kind, body FROM events WHERE run = ? AND kind = 'SessionStarted' AND session NOT IN"
    " (SELECT session FROM events WHERE run = ? AND kind = 'SessionEnded' AND session IS NOT NULL) ORDER BY seq"
)
# plans are large and only needed to resume a run; messages of agents may be many, and change no state
_NOT_OF_LEDGER = "('RunPlanned', 'MessageSent', 'MessagesTaken', 'TalkRefused')"
_TALK = f"SELECT seq, at, kind, body FROM events WHERE run = ? AND seq > ? AND kind IN {TALK} ORDER BY seq LIMIT 1000"  # noqa: S608
_NOT_OF_LOG = f"{LASTING}"  # these belong to the ledger, and are only needed to rebuild it
_PLAN = "SELECT seq, at, kind, body FROM events WHERE run = ? AND kind = 'RunPlanned' ORDER BY seq DESC LIMIT 1"
_SIZES = "SELECT run, max(at), max(seq), sum(length(body)) FROM events GROUP BY run ORDER BY min(seq) DESC"
_OF_SESSION = (
    "SELECT DISTINCT run FROM events WHERE kind = 'SessionStarted' AND"
    " (instr(session, ?) OR ? IN (json_extract(body, '$.step'), json_extract(body, '$.branch')))"
)
REBUILD = "`shoal clean` or the next run rebuilds what can be recovered"
_CLOSED_TO_US = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),  # a disk without room for the `-shm` file of a reader
)


@dataclass(frozen=True, slots=True)
class SqliteStore:
    """Stores events in databases below `.shoal`."""

    paths: StatePaths
    on_rebuilt: OnRebuilt = lambda sentence: None

    def ledger(self) -> Database:
        """Return the database of runs, steps and sessions; its folder is created."""
        self.paths.create()
        return Database(
            self.paths.ledger,
            LEDGER,
            lock=self.paths.locks / "ledger.lock",
            seed=lambda damaged: rebuild(self.paths, damaged, self.on_rebuilt),
            reserve=self.paths.reserve,
        )

    def session_log(self, session: str) -> Database:
        """Return the database of *session*."""
        return Database(self.paths.session_db(session), SESSION, lock=self.paths.locks / "sessions.lock")

    def read_events(self, run: str | None = None, after: int = 0) -> Iterator[Recorded]:
        """Read the ledger in order, for one *run* or for all, with numbers above *after*."""
        return _read_events(self.paths.ledger, {"run": run}, after, self.paths.sessions)

    def read_unended(self, run: str) -> Iterator[Recorded]:
        """Read the start events of those sessions of *run* that have no end; the others are not even decoded."""
        with _open_reader(self.paths.ledger, self.paths.sessions) as connection:
            rows = [] if connection is None else connection.execute(_UNENDED, (run, run)).fetchall()
        return _decode_rows(rows)

    def read_plan(self, run: str) -> RunPlanned | None:
        """Read the last recorded plan of *run*."""
        with _open_reader(self.paths.ledger, self.paths.sessions) as connection:
            rows = [] if connection is None else connection.execute(_PLAN, (run,)).fetchall()
        events = [recorded.event for recorded in _decode_rows(rows)]
        return next((event for event in events if isinstance(event, RunPlanned)), None)

    def read_talk(self, run: str, after: int = 0) -> Iterator[Recorded]:
        """Read what agents of *run* said to each other and started, in order."""
        with _open_reader(self.paths.ledger, self.paths.sessions) as connection:
            while connection is not None and (rows := connection.execute(_TALK, (run, after)).fetchall()):
                yield from _decode_rows(rows)
                after = rows[-1][0]

    def read_session(self, session: str, after: int = 0, kind: str | None = None) -> Iterator[Recorded]:
        """Read the log of *session* in order, with numbers above *after*, or only the events of one *kind*."""
        return _read_events(self.paths.session_db(session), {"kind": kind}, after, None)

    def list_sessions(self) -> list[str]:
        """List the names of all sessions, in no order."""
        return self._list_names("SELECT DISTINCT session FROM events WHERE kind = 'SessionStarted'")

    def find_runs(self, word: str | None) -> list[str]:
        """Find the runs with a session that *word* may mean; without one, the run of the latest session."""
        if word is None:
            return self._list_names("SELECT run FROM events WHERE kind = 'SessionStarted' ORDER BY seq DESC LIMIT 1")
        text = word.encode(errors="replace").decode()
        return self._list_names(_OF_SESSION, (text, text))

    def measure_runs(self) -> list[RunSize]:
        """Measure all runs, newest first."""
        with _open_reader(self.paths.ledger, self.paths.sessions) as connection:
            return [] if connection is None else [RunSize(*row) for row in connection.execute(_SIZES)]

    def list_runs(self) -> list[str]:
        """List the ids of all runs, newest first."""
        return self._list_names("SELECT run FROM events GROUP BY run ORDER BY min(seq) DESC")

    def _list_names(self, query: str, values: Sequence[str] = ()) -> list[str]:
        with _open_reader(self.paths.ledger, self.paths.sessions) as connection:
            return [] if connection is None else [name for (name,) in connection.execute(query, values)]


def _read_events(path: Path, only: _Only, after: int, logs: Path | None) -> Iterator[Recorded]:
    others = _NOT_OF_LOG if logs is None else _NOT_OF_LEDGER
    with _open_reader(path, logs) as connection:
        while connection is not None and (page := _read_page(connection, only, after, others)):
            yield from _decode_rows(page)
            after = page[-1][0]


def _decode_rows(rows: Sequence[_Row]) -> Iterator[Recorded]:
    for seq, at, kind, body in rows:
        event = decode(kind, body)
        if not isinstance(event, UnknownEvent):
            yield Recorded(seq, at, event)


def _read_page(connection: sqlite3.Connection, only: _Only, after: int, others: str) -> Sequence[_Row]:
    # page by page: an open cursor would keep the writer from resetting its log, or from writing at all
    chosen = {column: value for column, value in only.items() if value is not None}
    which = "".join(f"{column} = ? AND " for column in chosen) + f"kind NOT IN {others} AND seq > ?"
    query = f"SELECT seq, at, kind, body FROM events WHERE {which} ORDER BY seq LIMIT ?"  # noqa: S608
    return connection.execute(query, (*chosen.values(), after, PAGE_ROWS)).fetchall()


@contextlib.contextmanager
def _open_reader(path: Path, logs: Path | None = None) -> Iterator[sqlite3.Connection | None]:
    """Connect for reading; `None` if there is no database yet, or it is empty.

    If the ledger is missing although *logs* of sessions exist, it was lost: that is not a repository without runs.
    """
    if not path.exists():
        _refuse_lost(path, logs, "is missing")
        yield None
        return
    try:
        with contextlib.closing(_connect(path)) as connection:
            has_tables = check_version(path, connection) > 0
            if not has_tables:
                _refuse_lost(path, logs, "is empty")
            yield connection if has_tables else None
    except sqlite3.Error as error:
        remedy = f"; {REBUILD}" if logs is not None and primary_code(error) in DAMAGE else ""
        raise Broken(f"{path} cannot be read: {error}{remedy}") from error


def _refuse_lost(path: Path, logs: Path | None, what: str) -> None:
    if logs is not None and logs.is_dir() and any(name.endswith(".db") for name in os.listdir(logs)):
        raise Broken(f"the ledger {path} {what}, but there are logs of its sessions in {logs}; {REBUILD}")


def _connect(path: Path) -> sqlite3.Connection:
    """Open *path* in a way that rolls back a killed writer's journal, unless we may not write there."""
    try:
        return _try_connect(path, "mode=rw")
    except sqlite3.Error as error:
        if primary_code(error) not in _CLOSED_TO_US:
            raise
    try:
        return _try_connect(path, "mode=ro")
    except sqlite3.Error as error:
        # in a read-only folder, no -shm file can be made; without a log, it would protect nothing
        if primary_code(error) not in _CLOSED_TO_US or _has_log(path):
            raise
    return _try_connect(path, "immutable=1")


def _has_log(path: Path) -> bool:
    log = Path(f"{path}-wal")
    return log.exists() and log.stat().st_size > 0


def _try_connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path))}?{mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=READ_SECONDS, isolation_level=None)
    try:
        connection.text_factory = _decode_text
        connection.execute("PRAGMA query_only = 1")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _decode_text(text: bytes) -> str:
    """Decode the text of a table: a damaged byte affects only its own word."""
    return text.decode(errors="replace")
