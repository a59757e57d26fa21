"""The way from a sandbox to a PostgreSQL server: only as the role of its session, and only into its database.

It reads no more of the protocol than the first message of a connection and the answers up to the first query; the
server itself checks the password. Whoever is connected is known from the socket, of which each session has its own.
"""

import asyncio
import contextlib
import ssl
import struct
from dataclasses import dataclass, field

PROTOCOL = 3
CANCEL, SSL_REQUEST, GSS_REQUEST = 80877102, 80877103, 80877104
MOST_STARTUP_BYTES = 10_000  # as the server itself accepts
MOST_MESSAGE_BYTES = 64 * 1024
MOST_CANCELS = 8
START_SECONDS = 30.0
CHUNK = 64 * 1024
KEY, ERROR, READY = b"K", b"E", b"Z"
REFUSED, BAD_PROTOCOL, CANNOT_CONNECT = "28000", "08P01", "08006"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server is: the path of its socket, or a host and a port, with TLS or without."""

    path: str | None = None
    host: str = ""
    port: int = 5432
    tls: ssl.SSLContext | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        if self.path is not None:
            return await asyncio.open_unix_connection(self.path)
        reader, writer = await asyncio.open_connection(self.host, self.port)
        if self.tls is not None:
            writer.write(struct.pack("!ii", 8, SSL_REQUEST))
            if await reader.readexactly(1) != b"S":
                writer.close()
                raise ConnectionError("the server offers no TLS any more")
            await writer.start_tls(self.tls, server_hostname=self.host)
        return reader, writer


class StartRefused(Exception):
    """The first message of a connection asks for what the session may not have; the client is told why."""

    def __init__(self, why: str, code: str = REFUSED) -> None:
        super().__init__(why)
        self.code = code


@dataclass(slots=True)
class DatabaseDoor:
    """Lets the programs of one session connect as *role* to *database*."""

    server: ServerAddress
    role: str
    database: str
    _keys: set[bytes] = field(default_factory=set)
    """What cancels a query of one of its connections."""
    _cancels: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_CANCELS))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        try:
            async with asyncio.timeout(START_SECONDS):
                first = await self._read_first(reader, writer)
            if first is not None:
                await self._carry(first, reader, writer)
        except StartRefused as refusal:
            writer.write(error_message(str(refusal), refusal.code))
        except (OSError, EOFError, TimeoutError, BaseExceptionGroup):
            pass  # the connection of one program ended, on either side
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    async def _read_first(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Return the checked first message for the server; `None` if there is nothing more to do."""
        for _ in range(3):
            (length,) = struct.unpack("!i", await reader.readexactly(4))
            if not 8 <= length <= MOST_STARTUP_BYTES:
                raise StartRefused("this is not the protocol of PostgreSQL", BAD_PROTOCOL)
            body = await reader.readexactly(length - 4)
            (code,) = struct.unpack_from("!i", body)
            if code == CANCEL:
                await self._cancel(body)
                return None
            if code not in (SSL_REQUEST, GSS_REQUEST):
                return self._check_startup(code, body)
            writer.write(b"N")  # nobody else is on this socket
        raise StartRefused("a connection begins with a startup message", BAD_PROTOCOL)

    def _check_startup(self, code: int, body: bytes) -> bytes:
        if code >> 16 != PROTOCOL:
            raise StartRefused("only version 3 of the protocol is spoken here", BAD_PROTOCOL)
        given = read_parameters(body[4:])
        if "replication" in given:
            raise StartRefused("this session may not replicate")
        if given.get("user") != self.role:
            raise StartRefused(f'this session may connect only as "{self.role}"')
        if given.get("database", self.role) != self.database:
            raise StartRefused(f'this session may connect only to the database "{self.database}"')
        # written anew, so that the server reads exactly what was checked
        words = b"".join(part.encode("utf-8", "surrogateescape") + b"\0" for pair in given.items() for part in pair)
        content = struct.pack("!i", code) + words + b"\0"
        return struct.pack("!i", len(content) + 4) + content

    async def _cancel(self, body: bytes) -> None:
        """Cancel a query of this session, and of no other."""
        if body[4:] not in self._keys or self._cancels.locked():
            return
        async with self._cancels:
            _, writer = await self.server.connect()
            with contextlib.closing(writer):
                writer.write(struct.pack("!i", len(body) + 4) + body)
                await writer.drain()

    async def _carry(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                from_server, to_server = await self.server.connect()
        except (OSError, EOFError, TimeoutError):
            raise StartRefused("the database server cannot be reached now", CANNOT_CONNECT) from None
        keys: set[bytes] = set()
        try:
            to_server.write(first)
            async with asyncio.TaskGroup() as group:
                outward = group.create_task(_copy(reader, to_server))
                await self._copy_start(from_server, writer, keys)
                await _copy(from_server, writer)
                outward.cancel()
        finally:
            self._keys -= keys
            to_server.close()

    async def _copy_start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: set[bytes]) -> None:
        """Copy the server's messages up to the first prompt for a query, and note what cancels one."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                head = await reader.readexactly(5)
                kind, (length,) = head[:1], struct.unpack("!i", head[1:])
                if not 4 <= length <= MOST_MESSAGE_BYTES:
                    raise ConnectionError("the server sent no message of the protocol")
                body = await reader.readexactly(length - 4)
                if kind == KEY:
                    keys.add(body)
                    self._keys.add(body)
                writer.write(head + body)
                await writer.drain()
                if kind in (READY, ERROR):
                    return


def read_parameters(words: bytes) -> dict[str, str]:
    """Read the parameters of a startup message; each may be named once."""
    parts = words.decode("utf-8", "surrogateescape").split("\0")
    if parts[-2:] != ["", ""] or len(parts) % 2:
        raise StartRefused("the startup message is not well-formed", BAD_PROTOCOL)
    names, values = parts[:-2:2], parts[1:-2:2]
    if len(set(names)) < len(names) or "" in names:
        raise StartRefused("the startup message names a parameter twice", BAD_PROTOCOL)
    return dict(zip(names, values, strict=True))


def error_message(why: str, code: str) -> bytes:
    """Format an error as the server does."""
    fields = b"".join(
        f"{name}{text}\0".encode() for name, text in (("S", "FATAL"), ("V", "FATAL"), ("C", code), ("M", why))
    )
    return ERROR + struct.pack("!i", len(fields) + 5) + fields + b"\0"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
