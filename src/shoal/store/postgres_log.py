"""Write events to PostgreSQL: one transaction at a time for each repository, and each exactly once."""

import contextlib
import os
import platform
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from weakref import WeakSet

import psycopg
from psycopg import errors

from shoal import __version__
from shoal.errors import BadInput, Blocked, Broken, RunTaken
from shoal.store.kind import EventRow

SCHEMA = 1
CONNECT_SECONDS = 5
STATEMENT_SECONDS = 60
CHANNEL = "shoal_events"
Connection = psycopg.Connection[tuple[object, ...]]
# A dead peer is noticed within half a minute, also while nothing is sent.
OPTIONS: Mapping[str, str] = {
    "connect_timeout": str(CONNECT_SECONDS),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "shoal ledger",
    "options": f"-c search_path=shoal,pg_catalog -c statement_timeout={STATEMENT_SECONDS}s",
}
_TABLES = """
CREATE SCHEMA IF NOT EXISTS shoal;
CREATE TABLE IF NOT EXISTS shoal.versions (version integer NOT NULL);
CREATE TABLE IF NOT EXISTS shoal.repositories (repository text PRIMARY KEY);
CREATE TABLE IF NOT EXISTS shoal.events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, repository text NOT NULL, session_log text,
    at double precision NOT NULL, run text NOT NULL, session text, kind text NOT NULL, body text NOT NULL, epoch bigint
);
CREATE INDEX IF NOT EXISTS events_of_ledger ON shoal.events (repository, seq) WHERE session_log IS NULL;
CREATE INDEX IF NOT EXISTS events_by_run ON shoal.events (repository, run, seq) WHERE session_log IS NULL;
CREATE INDEX IF NOT EXISTS events_started ON shoal.events (repository, session)
    WHERE session_log IS NULL AND kind = 'SessionStarted';
CREATE INDEX IF NOT EXISTS events_of_log ON shoal.events (repository, session_log, seq) WHERE session_log IS NOT NULL;
CREATE TABLE IF NOT EXISTS shoal.owners (
    repository text, run text, epoch bigint NOT NULL, pid integer, host text, PRIMARY KEY (repository, run)
);
CREATE TABLE IF NOT EXISTS shoal.writers (
    writer uuid PRIMARY KEY, batch bigint NOT NULL, numbers bigint[] NOT NULL, at timestamptz NOT NULL DEFAULT now()
);
"""
_ONLY_ONE_AT_A_TIME = 7_226_473_125_541_300_001
"""The advisory lock of who creates the tables; two at once would fail."""
# Whoever comes later waits here until this transaction is seen by all: so numbers are seen in their order.
_TURN = "SELECT 1 FROM repositories WHERE repository = %s FOR UPDATE"
_INSERT = (
    "INSERT INTO events (repository, session_log, at, run, session, kind, body, epoch)"
    " SELECT %s, %s, at, run, session, kind, body, epoch FROM unnest(%s::float8[], %s::text[], %s::text[], %s::text[],"
    " %s::text[], %s::bigint[]) WITH ORDINALITY AS row (at, run, session, kind, body, epoch, number) ORDER BY number"
    " RETURNING seq"
)
_CLAIM = (
    "INSERT INTO owners (repository, run, epoch, pid, host) VALUES (%s, %s, 1, %s, %s) ON CONFLICT (repository, run)"
    " DO UPDATE SET epoch = owners.epoch + 1, pid = excluded.pid, host = excluded.host RETURNING epoch"
)
_ALIVE = "SELECT pg_try_advisory_lock_shared(hashtext(%s), hashtext(%s))"
_NOTE = (
    "INSERT INTO writers (writer, batch, numbers) VALUES (%s, %s, %s)"
    " ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, numbers = excluded.numbers, at = now()"
)
_OLD = "DELETE FROM writers WHERE at < now() - interval '7 days'"


class PostgresLink:
    """One connection for all logs of a store, made when it is first needed, and again after the server was gone."""

    def __init__(self, conninfo: str, repository: str) -> None:
        self.repository = repository
        self._conninfo = conninfo
        self._connection: Connection | None = None
        self.owned: set[str] = set()
        """The runs of this process, which others can see to be alive."""
        self._users: WeakSet[PostgresLog] = WeakSet()
        self.guard = threading.RLock()
        """Held by the log that uses the connection: each log belongs to one thread, but they share it."""

    def open(self, user: "PostgresLog") -> Connection:
        """Return the connection for one of its logs."""
        self._users.add(user)
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo)
            create_tables(self._connection, self.repository)
            for run in self.owned:
                self._show_alive(run)
        return self._connection

    def own(self, run: str) -> None:
        """Show that this process owns *run*, for as long as it is connected."""
        self.owned.add(run)
        self._show_alive(run)

    def _show_alive(self, run: str) -> None:
        if self._connection is not None:
            self._connection.execute(_ALIVE, (self.repository, run))

    def __del__(self) -> None:
        """Close what no log closed."""
        self.drop()

    def leave(self, user: "PostgresLog") -> None:
        """Close the connection with its last log."""
        self._users.discard(user)
        if not self._users:
            self.drop()

    def drop(self) -> None:
        """Close the connection: what came of its last transaction may be unknown."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


class PostgresLog:
    """The ledger of a repository, or the log of one *session*."""

    def __init__(self, link: PostgresLink, session: str | None = None) -> None:
        self._link = link
        self._session = session
        self._epochs: dict[str, int] = {}
        self._writer = uuid.uuid4()
        self._batch = 0
        self._doubtful: tuple[EventRow, ...] | None = None
        """The rows of a transaction whose end was not heard of."""

    def write(self, rows: Sequence[EventRow], claims: Sequence[str] = (), checks: Sequence[str] = ()) -> list[int]:
        """Write *rows* as one transaction and return their numbers once it is committed.

        Raises `Blocked` while the server is gone; the same rows, written again then, are kept once.
        """
        with self._link.guard, self._translated():
            connection = self._link.open(self)
            known = self._find_committed(connection, tuple(rows))
            if known is None:
                return self._write(connection, rows, claims, checks)
            if claims or checks:
                self._write(connection, (), claims, checks)
            return known

    def forget(self, run: str, last: int) -> bool:
        """Remove all events of *run* if the last one is number *last* still; return whether it was."""
        with self._link.guard, self._translated(), self._link.open(self).transaction():
            connection, names = self._link.open(self), (self._link.repository, run)
            connection.execute(_TURN, (self._link.repository,))
            query = "SELECT max(seq) FROM events WHERE repository = %s AND run = %s AND session_log IS NULL"
            if connection.execute(query, names).fetchone() != (last,):
                return False
            connection.execute("DELETE FROM events WHERE repository = %s AND run = %s", names)
            connection.execute("DELETE FROM owners WHERE repository = %s AND run = %s", names)
        return True

    def close(self) -> None:
        """Close the log until the next write."""
        with self._link.guard:
            self._link.leave(self)

    def _find_committed(self, connection: Connection, rows: tuple[EventRow, ...]) -> list[int] | None:
        """Return the numbers of *rows* if the transaction that was cut off had them, and was committed."""
        doubtful, self._doubtful = self._doubtful, None
        if doubtful is None or doubtful != rows:
            return None
        query = "SELECT numbers FROM writers WHERE writer = %s AND batch = %s"
        self._doubtful = doubtful  # until that is known
        found = connection.execute(query, (self._writer, self._batch)).fetchone()
        self._doubtful = None
        return None if found is None else [int(str(number)) for number in _as_list(found[0])]

    def _write(
        self, connection: Connection, rows: Sequence[EventRow], claims: Sequence[str], checks: Sequence[str]
    ) -> list[int]:
        if not (rows or claims or checks):
            connection.execute("SELECT 1")
            return []
        self._batch += 1
        self._doubtful = tuple(rows)
        with connection.transaction():
            connection.execute(_TURN, (self._link.repository,))
            epochs = self._epochs | {run: self._claim(connection, run) for run in claims}
            written = {*checks, *(row.run for row in rows)}
            self._check_owned(connection, {run: epoch for run, epoch in epochs.items() if run in written})
            numbers = self._insert(connection, rows, epochs)
            connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, self._link.repository))
        self._doubtful = None
        self._epochs = epochs
        for run in claims:
            self._link.own(run)
        return numbers

    def _insert(self, connection: Connection, rows: Sequence[EventRow], epochs: Mapping[str, int]) -> list[int]:
        if not rows:
            return []
        columns = (
            [row.at for row in rows],
            [row.run for row in rows],
            [row.session for row in rows],
            [row.kind for row in rows],
            [row.body for row in rows],
            [epochs.get(row.run) for row in rows],
        )
        found = connection.execute(_INSERT, (self._link.repository, self._session, *columns)).fetchall()
        numbers = [int(str(number)) for (number,) in found]
        connection.execute(_NOTE, (self._writer, self._batch, numbers))
        return numbers

    def _claim(self, connection: Connection, run: str) -> int:
        """Make this process the owner of *run*, and return its epoch: how many owners there were until now."""
        values = (self._link.repository, run, os.getpid(), platform.node())
        found = connection.execute(_CLAIM, values).fetchone()
        return int(str(found[0])) if found else 0

    def _check_owned(self, connection: Connection, epochs: Mapping[str, int]) -> None:
        query = "SELECT epoch, pid, host FROM owners WHERE repository = %s AND run = %s"
        for run, epoch in epochs.items():
            now = connection.execute(query, (self._link.repository, run)).fetchone()
            if now is not None and now[0] != epoch:
                raise RunTaken(run, int(str(now[1])), str(now[2]))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Make errors of the server ours; the connection is made anew after one of them."""
        try:
            yield
        except psycopg.Error as error:
            self._link.drop()
            raise as_shoal_error(error) from error
        except (RunTaken, ValueError):
            self._doubtful = None  # it was rolled back
            raise


def connect(conninfo: str) -> Connection:
    """Connect to the server of a ledger."""
    merged = psycopg.conninfo.make_conninfo(conninfo, **OPTIONS)
    return psycopg.connect(merged, autocommit=True)


def create_tables(connection: Connection, repository: str) -> None:
    """Create what is missing; refuse a ledger of a newer Shoal."""
    version = read_version(connection)
    if version == 0:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ONLY_ONE_AT_A_TIME,))
            if read_version(connection) == 0:
                connection.execute(_TABLES.encode())
                connection.execute("INSERT INTO shoal.versions VALUES (%s)", (SCHEMA,))
    connection.execute("INSERT INTO repositories VALUES (%s) ON CONFLICT DO NOTHING", (repository,))
    connection.execute(_OLD)


def read_version(connection: Connection) -> int:
    """Read the version of the tables, which is 0 if there are none; raise `BadInput` for one of a newer Shoal."""
    row = connection.execute("SELECT to_regclass('shoal.versions')").fetchone()
    if row is None or row[0] is None:
        return 0
    found = connection.execute("SELECT max(version) FROM shoal.versions").fetchone()
    version = int(str(found[0])) if found and found[0] is not None else 0
    if version > SCHEMA:
        raise BadInput(
            f"the ledger on {describe(connection)} was written by a newer Shoal: it needs one that knows schema"
            f" {version}, and this one, {__version__}, knows up to {SCHEMA}; upgrade Shoal"
        )
    return version


def describe(connection: Connection) -> str:
    """Name the server and the database of *connection*."""
    return f"{connection.info.host}/{connection.info.dbname}"


_FINAL = (errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName)
"""What does not pass by itself."""


def as_shoal_error(error: psycopg.Error) -> Broken:
    """Say what is wrong with the server, and whether it may pass."""
    lines = str(error).strip().splitlines()
    what = lines[0][:300] if lines else type(error).__name__
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not isinstance(error, _FINAL):
        return Blocked(f"the ledger's server does not answer: {what}")
    return Broken(f"the ledger's server refused: {what}")


def _as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()
