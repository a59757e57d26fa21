"""One PostgreSQL server for the agents of a run: held open, shared out to sessions, and left as it was found."""

import asyncio
import contextlib
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

from shoal import proc
from shoal.databases import admin
from shoal.databases.admin import Connection, Rights, open_pool
from shoal.databases.door import DatabaseDoor, ServerAddress
from shoal.databases.intents import DatabaseIntent, forget_intent, list_abandoned, note_intent
from shoal.databases.own_server import START_SECONDS, assert_programs, find_dump, open_server
from shoal.databases.session_database import PORT, SessionDatabase
from shoal.databases.waiting import OnWait, Patience
from shoal.errors import Broken, Unavailable, first_error
from shoal.gateway.arrivals import serve_listener
from shoal.model.command import Command
from shoal.store.paths import StatePaths

OLDEST = 140_000
WATCH_SECONDS = 1.0
LEAVE_SECONDS = 15.0
DUMP_SECONDS = 120.0
RESERVED = 30
"""Connections of a server of our own that are not for sessions."""


@dataclass(slots=True, kw_only=True)
class SharedDatabase:
    """The database of a run, on a server of its own or on the user's."""

    intent: DatabaseIntent
    pool: AsyncConnectionPool[Connection]
    rights: Rights
    address: ServerAddress
    patience: Patience
    dump: str
    """The path of `pg_dump`."""
    baseline_bytes: int = 0
    _sessions: dict[str, SessionDatabase] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def hold_session(self, session: str, most_bytes: int | None) -> AsyncIterator[SessionDatabase]:
        """Create the role and the schema of *session*, serve its socket, and drop all of it at the end."""
        role = admin.session_role(self.intent, session)
        folder = Path(self.intent.sockets, secrets.token_hex(4))
        grant = await self.patience.run(lambda: self._create(session, most_bytes))
        database = SessionDatabase(
            role=role, password=grant.password, database=self.intent.name, folder=folder, most_bytes=most_bytes
        )
        self._sessions[role] = database
        door = DatabaseDoor(self.address, role, self.intent.name)
        try:
            async with _served(folder, door):
                yield database
        finally:
            del self._sessions[role]
            with contextlib.suppress(psycopg.Error, TimeoutError):  # what is left is dropped at the end of the run
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._drop(role)

    async def export(self, database: SessionDatabase, most: int) -> bytes | None:
        """End the connections of a session whose agent has ended, and write what it has as SQL; `None` if nothing."""
        try:
            async with self.pool.connection() as connection:
                await admin.end_connections(connection, database.role)
                if not await admin.has_tables(connection, database.role):
                    return None
        except psycopg.Error as error:
            raise Broken(describe_error(error)) from None
        # as the session's own role: what an agent defined there runs with the rights of nobody else
        env = {**database.environment(), "PGHOST": str(database.folder), "PATH": "/usr/bin:/bin"}
        argv = (self.dump, f"--schema={database.role}", "--no-owner", "--no-privileges", "--lock-wait-timeout=10s")
        done = await proc.run(Command(argv=argv, cwd=Path("/"), env=env), timeout=DUMP_SECONDS, limit=most)
        if done.dropped:
            raise Broken(f"it is larger than {most // 2**20} MiB")
        if not done.ok:
            raise Broken(f"pg_dump failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
        return done.stdout

    async def watch(self) -> None:
        """Look now and then what sessions use, and end queries that take too long."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._sessions:
                with contextlib.suppress(psycopg.Error, TimeoutError):  # it is looked at again
                    async with asyncio.timeout(admin.OUR_SECONDS), self.pool.connection() as connection:
                        await self._look(connection)

    async def _look(self, connection: Connection) -> None:
        roles = list(self._sessions)
        await admin.end_long_queries(connection, roles)
        limits = [database.most_bytes for database in self._sessions.values() if database.most_bytes is not None]
        used = await admin.measure_database(connection) - self.baseline_bytes
        if not limits or used <= min(limits):
            return
        try:
            sizes = await admin.measure_roles(connection, roles)
        except psycopg.errors.LockNotAvailable:
            sizes = {}
        for role, size in sizes.items():
            self._note_size(role, size)
        # What no committed table has is of a transaction: the oldest that writes is the one to end.
        unknown = used - sum(sizes.values())
        if unknown > min(limits) and (writer := await admin.find_writer(connection, roles)) is not None:
            self._note_size(writer, unknown)

    def _note_size(self, role: str, size: int) -> None:
        database = self._sessions.get(role)
        if database is not None:
            database.size_bytes = size
            database.is_full = database.most_bytes is not None and size > database.most_bytes

    async def _create(self, session: str, most_bytes: int | None) -> admin.RoleGrant:
        async with self.pool.connection() as connection:
            grant = await admin.create_role(connection, self.intent, session, self.rights)
            if most_bytes is not None and self.rights.is_superuser:
                await admin.limit_temporary_files(connection, grant.role, most_bytes)
            return grant

    async def _drop(self, role: str) -> None:
        async with self.pool.connection() as connection:
            await admin.drop_role(connection, role)


@contextlib.asynccontextmanager
async def _served(folder: Path, door: DatabaseDoor) -> AsyncIterator[None]:
    """Serve the socket of a session in *folder*."""
    folder.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / f".s.PGSQL.{PORT}"))
    listener.listen(64)
    error: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(serve_listener(listener, door.serve))
            try:
                yield
            except BaseException as raised:  # passed around the task group, which would wrap it
                error = raised
            serving.cancel()
    finally:
        listener.close()
        (folder / f".s.PGSQL.{PORT}").unlink(missing_ok=True)
        folder.rmdir()
    if error is not None:
        raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOrder:
    """What a run wants: the user's server by its address, or else one of our own, with room for so many sessions."""

    run: str
    paths: StatePaths
    url: str
    sockets: Path
    """A folder of this user with a short path, in which the folders of sockets are made."""
    sessions: int
    environ: Mapping[str, str] = field(repr=False)
    exports: bool = False
    """Whether what sessions have is exported at their ends."""
    on_wait: OnWait = lambda reason: None


@contextlib.asynccontextmanager
async def open_shared_database(order: DatabaseOrder) -> AsyncIterator[SharedDatabase]:
    """Hold a database for the sessions of a run; on exit, nothing of it is left on the server.

    What killed runs left on the same server, or of servers of their own, is removed first.
    """
    tag = secrets.token_hex(4)
    server = admin.describe_server(order.url) if order.url else ""
    sockets = order.sockets / f"db-{tag}"
    intent = DatabaseIntent(run=order.run, tag=tag, sockets=str(sockets), server=server)
    programs = None if order.url else assert_programs(order.environ)
    dump = find_dump(order.environ)
    if order.exports and dump is None:
        raise Unavailable("keep_database", "there is no `pg_dump` on this host", "install Debian's `postgresql-client`")
    patience = Patience(order.on_wait)
    await _drop_abandoned(order, server)
    async with contextlib.AsyncExitStack() as stack:
        note_intent(order.paths, intent)
        sockets.mkdir(mode=0o700)
        conninfo = order.url
        if programs is not None:
            stack.callback(forget_intent, order.paths, intent)
            own = sockets / "server"
            own.mkdir(mode=0o700)
            connections = order.sessions * admin.CONNECTIONS + RESERVED
            started = await stack.enter_async_context(
                open_server(programs, intent.folder(order.paths), own, connections=connections)
            )
            conninfo = started.conninfo
        shared = await _create_shared(stack, order, intent, conninfo, patience=patience, dump=dump or "")
        yield await stack.enter_async_context(_watched(shared))


async def _create_shared(
    stack: contextlib.AsyncExitStack,
    order: DatabaseOrder,
    intent: DatabaseIntent,
    conninfo: str,
    *,
    patience: Patience,
    dump: str,
) -> SharedDatabase:
    with contextlib.ExitStack() as unreached, _explained(intent):
        if intent.server:
            unreached.callback(forget_intent, order.paths, intent)
        async with await _connect(conninfo, is_own=not intent.server) as connection:
            rights = await _check_rights(connection, intent)
            address = _find_address(connection, conninfo)
            if intent.server:
                unreached.pop_all()  # from here on, something may be there
                stack.push_async_callback(_leave_server, order.paths, intent, conninfo)
            await admin.create_database(connection, intent)
        pool = await stack.enter_async_context(open_pool(conninfo, intent.name))
        async with pool.connection() as connection:
            await admin.close_to_public(connection, rights)
            baseline = await admin.measure_database(connection)
    return SharedDatabase(
        intent=intent, pool=pool, rights=rights, address=address, patience=patience, dump=dump, baseline_bytes=baseline
    )


@contextlib.contextmanager
def _explained(intent: DatabaseIntent) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        why = describe_error(error)
        if intent.server:
            raise Unavailable(f"the database server {intent.server}", why, "check its address and role") from None
        raise Broken(f"the database of the run could not be made: {why}") from None


async def _connect(conninfo: str, *, is_own: bool) -> Connection:
    """Connect to a server; one of our own has just been started, and may not accept connections yet."""
    connect = partial(
        psycopg.AsyncConnection.connect, conninfo, autocommit=True, connect_timeout=int(admin.CONNECT_SECONDS)
    )
    return await (Patience(lambda reason: None, START_SECONDS).run(connect) if is_own else connect())


async def _check_rights(connection: Connection, intent: DatabaseIntent) -> Rights:
    rights = await admin.read_rights(connection)
    what = f"the database server {intent.server}"
    if rights.version < OLDEST:
        raise Unavailable(what, "it is older than PostgreSQL 14", "use a newer one")
    if not rights.can_create:
        remedy = f"`ALTER ROLE {rights.name} CREATEDB CREATEROLE`, or name another role"
        raise Unavailable(what, f"the role {rights.name} may not create databases and roles", remedy)
    return rights


def _find_address(connection: Connection, conninfo: str) -> ServerAddress:
    """Name the server that was reached, of those that the address names."""
    found = connection.info
    if found.host.startswith("/"):
        return ServerAddress(path=f"{found.host}/.s.PGSQL.{found.port}")
    tls = _tls(conninfo_to_dict(conninfo)) if connection.pgconn.ssl_in_use else None
    return ServerAddress(host=found.host, port=found.port, tls=tls)


def _tls(parts: Mapping[str, object]) -> ssl.SSLContext:
    """Check the server's certificate as far as the address asks for it."""
    mode, root = str(parts.get("sslmode") or "prefer"), parts.get("sslrootcert")
    context = ssl.create_default_context(cafile=None if root in (None, "system") else str(root))
    context.check_hostname = mode == "verify-full"
    if mode not in ("verify-full", "verify-ca"):
        context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def _watched(shared: SharedDatabase) -> AsyncIterator[SharedDatabase]:
    error: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(shared.watch())
            try:
                yield shared
            except BaseException as raised:  # passed around the task group, which would wrap it
                error = raised
            watching.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    if error is not None:
        raise error


async def _leave_server(paths: StatePaths, intent: DatabaseIntent, conninfo: str) -> None:
    """Drop what the run has on the user's server; if that fails, the note of it stays for the next start."""
    with contextlib.suppress(psycopg.Error, TimeoutError):
        async with asyncio.timeout(LEAVE_SECONDS), open_pool(conninfo) as pool, pool.connection() as connection:
            await admin.drop_database(connection, intent)
        forget_intent(paths, intent)


async def _drop_abandoned(order: DatabaseOrder, server: str) -> None:
    """Drop what killed runs left on the user's *server*; on others it stays until a run names them again."""
    for intent in list_abandoned(order.paths, order.run):
        if intent.server and intent.server == server:
            await _leave_server(order.paths, intent, order.url)


def describe_error(error: Exception) -> str:
    """Describe an error of a server in one line."""
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
