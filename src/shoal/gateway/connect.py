"""The proxy for allowed hosts: HTTP CONNECT only; a name is resolved once, and that address is connected to."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import h11

from shoal.gateway import client_hello
from shoal.gateway.hosts import (
    HTTPS,
    MOST_SHOWN,
    Address,
    BadAuthority,
    BadHostRule,
    HostRule,
    find_rule,
    is_own_address,
    parse_authority,
    refuse_address,
)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[str, int], Awaitable[Streams]]

CHUNK = 64 * 1024
HEAD_CHUNK = 4096
IN_TUNNEL = 0
"""The status of a refusal that comes too late for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDenial:
    """A connection that was refused."""

    host: str
    """Escaped for display: an agent wrote it."""
    port: int | None
    why: str
    rule: str | None
    """The entry of `hosts` that would allow it, where one could."""

    @property
    def text(self) -> str:
        """One sentence for a person."""
        place = self.host if self.port is None else f"{self.host}:{self.port}"
        return f"{place} {self.why}" + (f"; to allow it, add `hosts: [{self.rule}]`" if self.rule else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelBounds:
    """Limits on what one sandbox may use of the proxy."""

    tunnels: int = 256
    head_bytes: int = 16 * 1024
    head_seconds: float = 10
    dial_seconds: float = 10
    idle_seconds: float = 600


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask this host's resolver for the addresses of a name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class _Refused(Exception):
    def __init__(self, status: int, denial: HostDenial) -> None:
        super().__init__(denial.text)
        self.status = status
        self.denial = denial

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        """Tell the client, unless its tunnel is already open."""
        if self.status == IN_TUNNEL:
            return
        # Clients show the reason phrase, but rarely the body.
        body, reason = f"{self}\n".encode(), ascii(str(self))[1:-1][:200]
        head = f"HTTP/1.1 {self.status} {reason}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
        await writer.drain()


@contextlib.asynccontextmanager
async def _closing(streams: Streams) -> AsyncIterator[Streams]:
    try:
        yield streams
    finally:
        streams[1].close()
        with contextlib.suppress(OSError):
            await streams[1].wait_closed()


@dataclass(slots=True, kw_only=True)
class ConnectProxy:
    """Serves the connections of one session."""

    rules: Sequence[HostRule]
    report: Callable[[HostDenial], None]
    resolve: Resolve = resolve
    dial: Dial = asyncio.open_connection
    is_own: Callable[[Address], bool] = is_own_address
    bounds: TunnelBounds = field(default_factory=TunnelBounds)
    _open: int = 0

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, loopback: HostRule | None = None
    ) -> None:
        """Serve one connection to its end; an agent's mistake becomes an answer and a denial, never an error.

        With *loopback*, it was made to the port of that rule itself, without CONNECT.
        """
        self._open += 1
        try:
            async with _closing((reader, writer)):
                await self._serve(reader, writer, loopback)
        except* OSError:
            pass  # either side closed, or was silent for too long
        finally:
            self._open -= 1

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, loopback: HostRule | None
    ) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self.bounds.head_bytes)
        try:
            self._assert_room()
            if loopback is not None:
                return await self._forward(loopback, (reader, writer))
            async with asyncio.timeout(self.bounds.head_seconds):
                host, port = _read_head(await self._receive_head(connection, reader))
            addresses = await self._find_addresses(host, port)
            async with _closing(await self._dial_any(host, port, addresses)) as upstream:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _Tunnel(host, port, self.bounds, (reader, writer), upstream).run(connection.trailing_data[0])
        except* _Refused as refused:
            for error in refused.exceptions:
                if isinstance(error, _Refused):
                    self.report(error.denial)
                    if loopback is None:
                        await error.answer(writer)

    async def _forward(self, rule: HostRule, client: Streams) -> None:
        addresses = await self._find_addresses(rule.host, rule.port)
        async with _closing(await self._dial_any(rule.host, rule.port, addresses)) as upstream:
            # TLS never names an address, so a name can only be this one.
            await _Tunnel("localhost", rule.port, self.bounds, client, upstream).run(b"")

    def _assert_room(self) -> None:
        if self._open > self.bounds.tunnels:
            why = f"was not tried: the session has {self.bounds.tunnels} connections open"
            raise _Refused(503, HostDenial(host="a host", port=None, why=why, rule=None))

    async def _receive_head(self, connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request:
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                denial = HostDenial(host="a request", port=None, why=f"is not valid HTTP: {error}", rule=None)
                raise _Refused(400, denial) from None
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                raise ConnectionAbortedError
            connection.receive_data(await reader.read(HEAD_CHUNK))

    async def _find_addresses(self, host: str, port: int) -> Sequence[str]:
        rule = find_rule(self.rules, host, port)
        if rule is None:
            wanted = str(HostRule(host, port))
            denial = HostDenial(host=host, port=port, why="is not in `hosts`", rule=_suggest(wanted))
            raise _Refused(403, denial)
        if rule.is_literal:
            return ["127.0.0.1", "::1"] if rule.host == "localhost" else [rule.host]
        try:
            async with asyncio.timeout(self.bounds.dial_seconds):
                addresses = await self.resolve(host, port)
        except (OSError, UnicodeError) as error:
            denial = HostDenial(host=host, port=port, why=f"has no address: {error or 'no answer in time'}", rule=None)
            raise _Refused(502, denial) from None
        for address in addresses:
            if (why := refuse_address(ipaddress.ip_address(address), self.is_own)) is not None:
                denial = HostDenial(host=host, port=port, why=f"resolves to {address}, {why}", rule=None)
                raise _Refused(403, denial)
        return addresses

    async def _dial_any(self, host: str, port: int, addresses: Sequence[str]) -> Streams:
        problem: object = "it has no address"
        for address in addresses:
            try:
                async with asyncio.timeout(self.bounds.dial_seconds):
                    return await self.dial(address, port)
            except OSError as error:
                problem = error or "no answer in time"
        raise _Refused(502, HostDenial(host=host, port=port, why=f"could not be reached: {problem}", rule=None))


def _read_head(request: h11.Request) -> tuple[str, int]:
    """Return the host and port of a CONNECT request; anything ambiguous is refused."""
    shown = ascii(request.target.decode("latin-1"))[1:-1][:MOST_SHOWN]
    if request.http_version not in (b"1.0", b"1.1"):
        raise _Refused(400, HostDenial(host=shown, port=None, why="was asked for by another HTTP than 1.1", rule=None))
    if request.method != b"CONNECT":
        why = "was asked for without CONNECT: only https passes, so use an https:// URL"
        raise _Refused(405, HostDenial(host=shown, port=None, why=why, rule=None))
    try:
        host, port = parse_authority(request.target)
    except BadAuthority as error:
        raise _Refused(400, HostDenial(host=shown, port=None, why=str(error), rule=None)) from None
    if doubt := _find_doubt(request, host, port):
        raise _Refused(400, HostDenial(host=host, port=port, why=doubt, rule=None))
    return host, port


def _find_doubt(request: h11.Request, host: str, port: int) -> str | None:
    if {b"content-length", b"transfer-encoding", b"upgrade"} & {name for name, _ in request.headers}:
        return "comes with a body or an upgrade"
    hosts = [value for name, value in request.headers if name == b"host"]
    return None if all(_is_same(value, host, port) for value in hosts) else "differs from the Host header"


def _is_same(value: bytes, host: str, port: int) -> bool:
    shown = f"[{host}]" if ":" in host else host
    return value.lower() in (shown.encode(), f"{shown}:{port}".encode())


def _suggest(wanted: str) -> str | None:
    try:
        return str(HostRule.parse(wanted))
    except BadHostRule:
        return None


class _Tunnel:
    """Carries bytes both ways once the client has named its server."""

    def __init__(self, host: str, port: int, bounds: TunnelBounds, client: Streams, upstream: Streams) -> None:
        self._host = host
        self._port = port
        self._bounds = bounds
        self._client = client
        self._upstream = upstream

    async def run(self, early: bytes) -> None:
        """Carry bytes until both sides are done or have been silent for too long."""
        async with asyncio.timeout(self._bounds.idle_seconds) as idle, asyncio.TaskGroup() as group:
            group.create_task(self._send(early, idle))
            group.create_task(self._carry(self._upstream[0], self._client[1], idle))

    async def _send(self, early: bytes, idle: asyncio.Timeout) -> None:
        writer = self._upstream[1]
        if start := await self._check_start(early):
            writer.write(start)
            await writer.drain()
        await self._carry(self._client[0], writer, idle)

    async def _check_start(self, start: bytes) -> bytes:
        """Return the client's first bytes; raise if they open TLS to another server."""
        reader = self._client[0]
        start = start or await reader.read(CHUNK)
        if not client_hello.is_tls(start):
            if self._port == HTTPS and start:
                self._refuse("was not spoken to by TLS")
            return start
        async with asyncio.timeout(self._bounds.head_seconds):
            while (hello := client_hello.read(start)) is None:
                more = await reader.read(CHUNK)
                if not more:
                    self._refuse("got half of a TLS hello")
                start += more
        if hello.problem or (hello.server_name is not None and hello.server_name != self._host):
            self._refuse(hello.problem or f"was asked for, but TLS names {hello.server_name}")
        return start

    def _refuse(self, why: str) -> None:
        raise _Refused(IN_TUNNEL, HostDenial(host=self._host, port=self._port, why=why, rule=None))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
            idle.reschedule(loop.time() + self._bounds.idle_seconds)
        if writer.can_write_eof():
            writer.write_eof()
