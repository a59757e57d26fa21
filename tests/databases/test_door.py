"""The door between a sandbox and the server: it lets one role through, and survives whatever a program sends."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.databases.door import (
    CANCEL,
    MOST_STARTUP_BYTES,
    SSL_REQUEST,
    DatabaseDoor,
    ServerAddress,
    StartRefused,
    read_parameters,
)
from tests.postgres import Server

VERSION = 196608


def startup(*pairs: str, code: int = VERSION) -> bytes:
    content = struct.pack("!i", code) + b"".join(f"{word}\0".encode() for word in pairs) + b"\0"
    return struct.pack("!i", len(content) + 4) + content


@contextlib.asynccontextmanager
async def open_door(server: Server, folder: Path) -> AsyncIterator[DatabaseDoor]:
    """Serve a door for the role `guest` of the database `postgres`."""
    server.execute("DROP ROLE IF EXISTS guest")
    server.execute("CREATE ROLE guest LOGIN PASSWORD 'word'")
    door = DatabaseDoor(ServerAddress(path=f"{server.folder}/.s.PGSQL.5432"), "guest", "postgres")
    async with await asyncio.start_unix_server(door.serve, folder / ".s.PGSQL.5432"):
        yield door


async def say(folder: Path, *messages: bytes) -> bytes:
    """Send *messages* and return all that comes back until the door is closed."""
    reader, writer = await asyncio.open_unix_connection(folder / ".s.PGSQL.5432")
    with contextlib.closing(writer):
        for message in messages:
            writer.write(message)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                return await reader.read()
    return b""


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (startup("user", "boss", "database", "postgres"), 'only as "guest"'),
        (startup("user", "guest", "database", "template1"), 'only to the database "postgres"'),
        (startup("user", "guest"), 'only to the database "postgres"'),
        (startup("database", "postgres"), 'only as "guest"'),
        (startup("user", "guest", "database", "postgres", "replication", "database"), "may not replicate"),
        (startup("user", "guest", "user", "boss", "database", "postgres"), "names a parameter twice"),
        (startup("user", "guest", "database"), "not well-formed"),
        (startup("user", "guest", "database", "postgres", code=131072), "only version 3"),
        (struct.pack("!ii", 8, SSL_REQUEST) * 4, "begins with a startup message"),
        (struct.pack("!ii", MOST_STARTUP_BYTES + 1, VERSION), "not the protocol"),
        (struct.pack("!ii", -1, VERSION), "not the protocol"),
        (b"GET / HTTP/1.1\r\n\r\n", "not the protocol"),
    ],
)
async def test_a_connection_as_somebody_else_is_refused_with_a_reason(
    server: Server, tmp_path: Path, message: bytes, why: str
) -> None:
    async with open_door(server, tmp_path):
        answer = await say(tmp_path, message)

    assert answer.lstrip(b"N").startswith(b"E"), answer
    assert why in answer.decode()


async def test_the_server_checks_the_password(server: Server, tmp_path: Path) -> None:
    async with open_door(server, tmp_path):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            await psycopg.AsyncConnection.connect(f"host={tmp_path} user=guest dbname=postgres password=wrong")


async def test_a_query_is_cancelled_by_its_own_session_and_by_no_other(server: Server, tmp_path: Path) -> None:
    conninfo = f"host={tmp_path} user=guest dbname=postgres password=word"
    async with open_door(server, tmp_path):
        boss = await psycopg.AsyncConnection.connect(server.url, autocommit=True)
        guest = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
        foreign = struct.pack("!iiii", 16, CANCEL, boss.info.backend_pid, 0)
        async with boss, guest, asyncio.TaskGroup() as group:
            assert await say(tmp_path, foreign) == b""
            sleeping = group.create_task(_fail(guest))
            while not server.execute(
                "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)' AND usename='guest'"
            ):
                await asyncio.sleep(0.01)
            await guest.cancel_safe()

    assert isinstance(sleeping.result(), psycopg.errors.QueryCanceled)


async def _fail(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> psycopg.Error | None:
    try:
        await connection.execute("SELECT pg_sleep(60)")
    except psycopg.Error as error:
        return error
    return None


async def test_a_server_that_is_gone_is_named_and_connections_end_with_the_door(tmp_path: Path) -> None:
    door = DatabaseDoor(ServerAddress(path=str(tmp_path / "nobody")), "guest", "postgres")
    async with await asyncio.start_unix_server(door.serve, tmp_path / ".s.PGSQL.5432"):
        answer = await say(tmp_path, startup("user", "guest", "database", "postgres"))

    assert "cannot be reached now" in answer.decode()


@given(st.binary(max_size=200))
def test_any_bytes_are_parameters_or_refused(words: bytes) -> None:
    try:
        found = read_parameters(words)
    except StartRefused:
        return
    written = b"".join(part.encode("utf-8", "surrogateescape") + b"\0" for pair in found.items() for part in pair)
    assert written + b"\0" == words
