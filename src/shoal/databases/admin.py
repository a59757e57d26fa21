"""What the administrator of a server does for a run: its database, and the role and schema of each session."""

import logging
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool

from shoal.databases.intents import DatabaseIntent

CONNECTIONS = 10
"""How many connections a session may have at a time."""
STATEMENT_SECONDS = 300
IDLE_SECONDS = 300
OUR_SECONDS = 60
LONGEST_NAME = 63
POOL = 4
CONNECT_SECONDS = 10.0
SOON_SECONDS = 1
Connection = psycopg.AsyncConnection[tuple[object, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleGrant:
    """What one session has on the server; its schema has the name of its role."""

    role: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What the administrator may do."""

    is_superuser: bool
    can_create: bool
    name: str
    version: int


OWN_CONNECTION = {
    "application_name": "shoal",
    "options": f"-c search_path=pg_catalog -c statement_timeout={OUR_SECONDS}s",
}
_RIGHTS = (
    "SELECT rolsuper, rolsuper OR (rolcreatedb AND rolcreaterole), rolname, current_setting('server_version_num')::int"
    " FROM pg_roles WHERE rolname = current_user"
)
# Large objects belong to no schema, would not be counted, and files of the server are nobody's.
_WITHHELD: tuple[LiteralString, ...] = (
    "lo_create(oid)",
    "lo_creat(integer)",
    "lo_from_bytea(oid, bytea)",
    "lo_import(text)",
    "lo_import(text, oid)",
    "lo_export(oid, text)",
    "pg_notify(text, text)",
    "pg_ls_tmpdir()",
    "pg_stat_get_activity(integer)",
)
_LIMITS: Mapping[str, str] = {
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
}


def session_role(intent: DatabaseIntent, session: str) -> str:
    """Name the role of *session*; the end of a session's id, which is its own, is never cut off."""
    plain = re.sub(r"[^a-z0-9]+", "_", session.lower())
    return f"{intent.name}_{plain[-(LONGEST_NAME - len(intent.name) - 1) :]}"


def describe_server(url: str) -> str:
    """Describe the server of *url* without its password."""
    parts = conninfo_to_dict(url)
    return f"{parts.get('user', '')}@{parts.get('host', '')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


@asynccontextmanager
async def open_pool(conninfo: str, database: str | None = None) -> AsyncIterator[AsyncConnectionPool[Connection]]:
    """Hold a few connections of the administrator, made as they are needed."""
    named = {} if database is None else {"dbname": database}
    complete = make_conninfo(conninfo, **OWN_CONNECTION, **named, connect_timeout=str(int(CONNECT_SECONDS)))
    pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
        complete, min_size=0, max_size=POOL, timeout=CONNECT_SECONDS, open=False, kwargs={"autocommit": True}
    )
    logging.getLogger("psycopg").addHandler(logging.NullHandler())  # what goes wrong is said by us, and not on stderr
    await pool.open()
    try:
        yield pool
    finally:
        await pool.close(timeout=SOON_SECONDS)


async def read_rights(connection: Connection) -> Rights:
    """Read what the administrator may do."""
    row = await (await connection.execute(_RIGHTS)).fetchone()
    if row is None:
        raise AssertionError("whoever is connected has a role")
    return Rights(is_superuser=bool(row[0]), can_create=bool(row[1]), name=str(row[2]), version=int(str(row[3])))


async def create_database(connection: Connection, intent: DatabaseIntent) -> None:
    """Create the database of a run, and the group of the roles that may connect to it."""
    name = sql.Identifier(intent.name)
    note = sql.Literal(f"made by Shoal for the run {intent.run}; it is dropped when that ends")
    for statement in (
        sql.SQL("CREATE ROLE {} NOLOGIN").format(name),
        sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(name),
        sql.SQL("COMMENT ON DATABASE {} IS {}").format(name, note),
        sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name),
        sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}").format(name, name),
    ):
        await connection.execute(statement)


async def close_to_public(connection: Connection, rights: Rights) -> None:
    """Take from everybody, in the run's own database, what would join its sessions; connected to that database."""
    await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    if not rights.is_superuser:
        return
    for function in _WITHHELD:  # not every version has all of them
        found = await connection.execute("SELECT to_regprocedure(%s) IS NOT NULL", (f"pg_catalog.{function}",))
        if (row := await found.fetchone()) and row[0]:
            await connection.execute(
                sql.SQL("REVOKE EXECUTE ON FUNCTION pg_catalog.{} FROM PUBLIC").format(sql.SQL(function))
            )


async def create_role(connection: Connection, intent: DatabaseIntent, session: str, rights: Rights) -> RoleGrant:
    """Create the role and the schema of *session*; what an earlier attempt left of them is dropped."""
    grant = RoleGrant(role=session_role(intent, session), password=secrets.token_hex(16))
    await drop_role(connection, grant.role)
    role, group = sql.Identifier(grant.role), sql.Identifier(intent.name)
    async with connection.transaction():
        await connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN CONNECTION LIMIT {} PASSWORD {} IN ROLE {}").format(
                role, sql.Literal(CONNECTIONS), sql.Literal(grant.password), group
            )
        )
        if not rights.is_superuser:  # to be able to end its connections and to drop what it owns
            await connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(role))
        for name, value in (("search_path", grant.role), *_LIMITS.items()):
            await connection.execute(
                sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                    role, group, sql.Identifier(name), sql.Literal(value)
                )
            )
        # The schema stays ours: its owner could let the roles of others in.
        await connection.execute(sql.SQL("CREATE SCHEMA {}").format(role))
        await connection.execute(sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(role, role))
    return grant


async def limit_temporary_files(connection: Connection, role: str, size_bytes: int) -> None:
    """Limit the files that a query of *role* sorts in; only a superuser may."""
    limit = sql.Literal(f"{max(1, size_bytes // 1024)}kB")
    await connection.execute(sql.SQL("ALTER ROLE {} SET temp_file_limit = {}").format(sql.Identifier(role), limit))


async def end_connections(connection: Connection, role: str) -> None:
    """End all connections of *role*."""
    await connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (role,))


async def drop_role(connection: Connection, role: str) -> None:
    """Drop a role with its schema and all that it owns, and end its connections; there may be none of it."""
    if await (await connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,))).fetchone() is None:
        return
    name = sql.Identifier(role)
    await connection.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(name))
    await end_connections(connection, role)
    async with connection.transaction():
        await connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))
        await connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
        await connection.execute(sql.SQL("DROP ROLE {}").format(name))


async def drop_database(connection: Connection, intent: DatabaseIntent) -> None:
    """Drop the database of a run and all of its roles; there may be none."""
    await connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(intent.name)))
    found = await connection.execute(
        "SELECT rolname FROM pg_roles WHERE starts_with(rolname, %s) ORDER BY length(rolname) DESC", (intent.name,)
    )
    for (role,) in await found.fetchall():
        await connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(str(role))))


_SIZES = (
    "SELECT r.rolname, sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner"
    " WHERE c.relkind IN ('r', 'm') AND r.rolname = ANY (%s) GROUP BY r.rolname"
)
_WRITERS = (
    "SELECT usename FROM pg_stat_activity WHERE usename = ANY (%s) AND backend_xid IS NOT NULL"
    " ORDER BY xact_start LIMIT 1"
)
_TOO_LONG = (
    "SELECT CASE WHEN state = 'active' THEN pg_cancel_backend(pid) ELSE pg_terminate_backend(pid) END"
    " FROM pg_stat_activity WHERE usename = ANY (%s)"
    " AND ((state = 'active' AND query_start < now() - %s * interval '1 s')"
    " OR (state LIKE 'idle in%%' AND state_change < now() - %s * interval '1 s'))"
)


async def measure_database(connection: Connection) -> int:
    """Measure all files of the run's database, which waits for no lock."""
    row = await (await connection.execute("SELECT pg_database_size(current_database())")).fetchone()
    return int(str(row[0])) if row else 0


async def measure_roles(connection: Connection, roles: Sequence[str]) -> dict[str, int]:
    """Measure what each role has in tables that are committed; raises where a lock is held on one for long."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{SOON_SECONDS}s'")
        rows = await (await connection.execute(_SIZES, (list(roles),))).fetchall()
    return {str(role): int(str(size)) for role, size in rows}


async def find_writer(connection: Connection, roles: Sequence[str]) -> str | None:
    """Find the role with the oldest transaction that has written something."""
    row = await (await connection.execute(_WRITERS, (list(roles),))).fetchone()
    return str(row[0]) if row else None


async def end_long_queries(connection: Connection, roles: Sequence[str]) -> None:
    """End the queries of *roles* that take longer than their setting, which an agent can change, allows."""
    await connection.execute(_TOO_LONG, (list(roles), STATEMENT_SECONDS, IDLE_SECONDS))


async def has_tables(connection: Connection, schema: str) -> bool:
    """Return whether there is anything in *schema*."""
    query = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s LIMIT 1"
    return await (await connection.execute(query, (schema,))).fetchone() is not None
