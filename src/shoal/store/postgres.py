"""The PostgreSQL store: the events of many repositories on one server, for many coordinators and machines."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psycopg

from shoal.model.events import Recorded, RunPlanned
from shoal.store.codec import UnknownEvent, decode
from shoal.store.kind import LASTING, TALK, RunSize
from shoal.store.postgres_log import (
    CHANNEL,
    Connection,
    PostgresLink,
    PostgresLog,
    as_shoal_error,
    connect,
    read_version,
)

PAGE_ROWS = 1000
MOST_IDLE = 2
_Row = tuple[object, ...]
_COLUMNS = "SELECT seq, at, kind, body FROM events WHERE repository = %s"
_LEDGER = f"{_COLUMNS} AND session_log IS NULL"
_APART = "('RunPlanned', 'MessageSent', 'MessagesTaken', 'TalkRefused')"  # as in sqlite.py
_PAGE = f"{_LEDGER} AND kind NOT IN {_APART} AND seq > %s ORDER BY seq LIMIT {PAGE_ROWS}"
_PAGE_OF_RUN = f"{_LEDGER} AND run = %s AND kind NOT IN {_APART} AND seq > %s ORDER BY seq LIMIT {PAGE_ROWS}"
_PAGE_OF_TALK = f"{_LEDGER} AND run = %s AND kind = ANY (%s) AND seq > %s ORDER BY seq LIMIT {PAGE_ROWS}"
_PAGE_OF_LOG = f"{_COLUMNS} AND session_log = %s AND kind <> ALL (%s) AND seq > %s ORDER BY seq LIMIT {PAGE_ROWS}"
_PAGE_OF_KIND = f"{_COLUMNS} AND session_log = %s AND kind = %s AND seq > %s ORDER BY seq LIMIT {PAGE_ROWS}"
_PLAN = f"{_LEDGER} AND run = %s AND kind = 'RunPlanned' ORDER BY seq DESC LIMIT 1"
_UNENDED = (
    "SELECT seq, at, kind, body FROM events AS started WHERE repository = %s AND session_log IS NULL AND run = %s"
    " AND kind = 'SessionStarted' AND NOT EXISTS (SELECT FROM events AS ended WHERE ended.session = started.session"
    " AND ended.repository = started.repository AND ended.run = started.run AND ended.session_log IS NULL"
    " AND ended.kind = 'SessionEnded') ORDER BY seq"
)
_SESSIONS = (
    "SELECT DISTINCT session FROM events WHERE repository = %s AND session_log IS NULL AND kind = 'SessionStarted'"
)
_LATEST = (
    "SELECT run FROM events WHERE repository = %s AND session_log IS NULL AND kind = 'SessionStarted'"
    " ORDER BY seq DESC LIMIT 1"
)
# The body is compared as text, and then read: PostgreSQL's own JSON refuses some characters that an event may have.
_STARTED = (
    "SELECT run, session, body FROM events WHERE repository = %s AND session_log IS NULL AND kind = 'SessionStarted'"
    " AND (position(%s::text in session) > 0 OR position(%s::text in body) > 0)"
)
_SIZES = (
    "SELECT run, max(at), max(seq), sum(octet_length(body)) FROM events WHERE repository = %s AND session_log IS NULL"
    " GROUP BY run ORDER BY min(seq) DESC"
)
_RUNS = "SELECT run FROM events WHERE repository = %s AND session_log IS NULL GROUP BY run ORDER BY min(seq) DESC"
_LAST = "SELECT max(seq) FROM events WHERE repository = %s AND session_log IS NULL"
# The lock of an owner's connection, which the server releases when that ends; numbers of locks are unsigned.
_LIVE = (
    "SELECT run, host FROM owners JOIN pg_locks ON locktype = 'advisory' AND objsubid = 2 AND granted"
    " AND classid::bigint = hashtext(repository)::bigint & 4294967295"
    " AND objid::bigint = hashtext(run)::bigint & 4294967295 WHERE repository = %s"
)
_idle: dict[tuple[int, str], list[Connection]] = {}
"""Connections of this process that nobody uses now."""
_idle_guard = threading.Lock()  # guards that dictionary and its lists


@dataclass(frozen=True, slots=True)
class PostgresStore:
    """Stores the events of one *repository* on the server of *conninfo*."""

    conninfo: str = field(repr=False)
    repository: str
    _link: list[PostgresLink] = field(default_factory=list, repr=False, compare=False)

    def ledger(self) -> PostgresLog:
        """Return the log of runs, steps and sessions; its tables are created."""
        return PostgresLog(self._own_link())

    def session_log(self, session: str) -> PostgresLog:
        """Return the log of *session*."""
        return PostgresLog(self._own_link(), session)

    def read_events(self, run: str | None = None, after: int = 0) -> Iterator[Recorded]:
        """Read the ledger in order, for one *run* or for all, with numbers above *after*."""
        if run is None:
            return self._read_pages(_PAGE, (), after)
        return self._read_pages(_PAGE_OF_RUN, (run,), after)

    def read_plan(self, run: str) -> RunPlanned | None:
        """Read the last recorded plan of *run*."""
        events = [recorded.event for recorded in _decode_rows(self._fetch(_PLAN, run))]
        return next((event for event in events if isinstance(event, RunPlanned)), None)

    def read_unended(self, run: str) -> Iterator[Recorded]:
        """Read the start events of those sessions of *run* that have no end."""
        return _decode_rows(self._fetch(_UNENDED, run))

    def read_talk(self, run: str, after: int = 0) -> Iterator[Recorded]:
        """Read what agents of *run* said to each other and started, in order."""
        return self._read_pages(_PAGE_OF_TALK, (run, list(TALK)), after)

    def read_session(self, session: str, after: int = 0, kind: str | None = None) -> Iterator[Recorded]:
        """Read the log of *session* in order, with numbers above *after*, or only the events of one *kind*."""
        if kind is None:
            return self._read_pages(_PAGE_OF_LOG, (session, list(LASTING)), after)
        return self._read_pages(_PAGE_OF_KIND, (session, kind), after)

    def list_sessions(self) -> list[str]:
        """List the names of all sessions, in no order."""
        return [str(session) for (session,) in self._fetch(_SESSIONS)]

    def find_runs(self, word: str | None) -> list[str]:
        """Find the runs with a session that *word* may mean; without one, the run of the latest session."""
        if word is None:
            return [str(run) for (run,) in self._fetch(_LATEST)]
        text = word.encode(errors="replace").decode()
        if "\0" in text:
            return []
        rows = self._fetch(_STARTED, text, json.dumps(text)[1:-1])
        return list(dict.fromkeys(str(run) for run, session, body in rows if _means(text, str(session), str(body))))

    def measure_runs(self) -> list[RunSize]:
        """Measure all runs, newest first."""
        rows = self._fetch(_SIZES)
        return [RunSize(str(run), float(str(at)), int(str(seq)), int(str(size))) for run, at, seq, size in rows]

    def list_runs(self) -> list[str]:
        """List the ids of all runs, newest first."""
        return [str(run) for (run,) in self._fetch(_RUNS)]

    def find_live(self) -> dict[str, str]:
        """Find the runs that processes of any machine own and are connected for, with the names of their machines."""
        return {str(run): str(host) for run, host in self._fetch(_LIVE)}

    def read_last(self) -> int:
        """Read the number of the last event of the ledger."""
        return max((int(str(last or 0)) for (last,) in self._fetch(_LAST)), default=0)

    def wait(self, seconds: float) -> None:
        """Wait up to *seconds*, or until something was written; while the server is gone, it is the whole time."""
        end = time.monotonic() + seconds
        key = (os.getpid(), f"{self.conninfo} {self.repository}")
        with _idle_guard:
            connection = next(iter(_idle.pop(key, ())), None)
        try:
            if connection is None:
                connection = connect(self.conninfo)
                connection.execute(f"LISTEN {CHANNEL}".encode())
            for note in connection.notifies(timeout=seconds):
                if note.payload == self.repository or time.monotonic() > end:
                    break
        except psycopg.Error:
            if connection is not None:
                connection.close()
            time.sleep(max(0.0, end - time.monotonic()))
        else:
            with _idle_guard:
                _idle[key] = [connection]

    def close(self) -> None:
        """Close the connections that wait for readers of this process; the next one makes a new one."""
        with _idle_guard:
            keys = (os.getpid(), self.conninfo), (os.getpid(), f"{self.conninfo} {self.repository}")
            waiting = [connection for key in keys for connection in _idle.pop(key, ())]
        for connection in waiting:
            connection.close()

    def _own_link(self) -> PostgresLink:
        if not self._link:
            self._link.append(PostgresLink(self.conninfo, self.repository))
        return self._link[0]

    def _fetch(self, query: str, *values: object) -> Sequence[_Row]:
        with _open_reader(self.conninfo) as connection:
            if connection is None:
                return []
            return connection.execute(query.encode(), (self.repository, *values)).fetchall()

    def _read_pages(self, query: str, values: tuple[object, ...], after: int) -> Iterator[Recorded]:
        # page by page, each in a transaction of its own: a reader that is slow keeps nothing from being vacuumed
        while page := self._fetch(query, *values, after):
            yield from _decode_rows(page)
            after = int(str(page[-1][0]))


def _means(word: str, session: str, body: str) -> bool:
    fields = json.loads(body)
    return word in session or word in (fields.get("step"), fields.get("branch"))


def _decode_rows(rows: Sequence[_Row]) -> Iterator[Recorded]:
    for seq, at, kind, body in rows:
        event = decode(str(kind), str(body))
        if not isinstance(event, UnknownEvent):
            yield Recorded(int(str(seq)), float(str(at)), event)


@contextlib.contextmanager
def _open_reader(conninfo: str) -> Iterator[Connection | None]:
    """Take an idle connection, or make one; `None` if there are no tables yet."""
    connection: Connection | None = None
    try:
        connection = _take_idle(conninfo) or _connect_reader(conninfo)
        yield connection if read_version(connection) > 0 else None
    except psycopg.Error as error:
        if connection is not None:
            connection.close()
        raise as_shoal_error(error) from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    _give_back(conninfo, connection)


def _connect_reader(conninfo: str) -> Connection:
    connection = connect(conninfo)
    connection.execute("SET default_transaction_read_only = on")
    return connection


def _take_idle(conninfo: str) -> Connection | None:
    """Take a connection that was made before, unless its server has gone since."""
    while True:
        with _idle_guard:
            waiting = _idle.get((os.getpid(), conninfo))
            connection = waiting.pop() if waiting else None
        if connection is None:
            return None
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            connection.close()
        else:
            return connection


def _give_back(conninfo: str, connection: Connection) -> None:
    with _idle_guard:
        waiting = _idle.setdefault((os.getpid(), conninfo), [])
        if len(waiting) < MOST_IDLE:
            waiting.append(connection)
            return
    connection.close()
