"""Connections to the servers of models: kept open between requests, and read no faster than the client reads."""

import asyncio
import contextlib
import os
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import h11

from shoal.errors import ShoalError
from shoal.gateway.providers import Headers

CONNECT_SECONDS = 20.0
IDLE_SECONDS = 50.0
MOST_IDLE = 32
SILENCE_SECONDS = 900.0
"""How long an answer may stop; a client that waits for less leaves earlier."""
CHUNK_BYTES = 64 * 1024
PIECE_BYTES = 512 * 1024
CERTIFICATES = ("NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Besides what Python reads itself, variables by which users name certificates of their own."""


class UpstreamFailed(ShoalError):
    """The model's server could not be reached, or violated HTTP."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A server, and the proxy on the way there if there is one."""

    scheme: str
    host: str
    port: int
    proxy: str | None = None

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return host if self.port == usual else f"{host}:{self.port}"


def origin_of(url: str, environ: Mapping[str, str]) -> Origin:
    """Return the server of *url*, by way of the user's proxy."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Origin(parts.scheme, parts.hostname or "", port, _proxy_of(parts, environ))


def _proxy_of(parts: SplitResult, environ: Mapping[str, str]) -> str | None:
    named = (f"{parts.scheme}_proxy", f"{parts.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    proxy = next((environ[name] for name in named if environ.get(name)), None)
    host = parts.hostname or ""
    direct = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").replace(" ", "").split(",")
    is_direct = "*" in direct or any(
        host == name.lstrip(".") or host.endswith(f".{name.lstrip('.')}") for name in direct if name
    )
    return proxy if proxy and proxy.startswith("http://") and not is_direct else None


class _Connection:
    """One connection, with its place in the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.state = h11.Connection(h11.CLIENT)
        self.idle_since = 0.0

    async def send(self, *events: h11.Event) -> None:
        self.writer.write(b"".join(self.state.send(event) or b"" for event in events))
        await self.writer.drain()

    async def receive(self) -> h11.Event:
        """Return the next event; raise `UpstreamFailed` for anything else."""
        while True:
            event = self.state.next_event()
            if event is h11.PAUSED:
                raise UpstreamFailed("the model's server sent more than its answer")
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]  # the only other one without a class was handled
            async with asyncio.timeout(SILENCE_SECONDS):
                self.state.receive_data(await self.reader.read(CHUNK_BYTES))

    @property
    def is_reusable(self) -> bool:
        return self.state.our_state is h11.DONE and self.state.their_state is h11.DONE

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """The head of an upstream's answer; its body is read once, in order."""

    status: int
    headers: Headers
    connection: _Connection

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        while True:
            match await self.connection.receive():
                case h11.Data(data=data):
                    yield bytes(data)
                case h11.EndOfMessage():
                    return
                case _:
                    raise UpstreamFailed("the model's server broke off")


class UpstreamPool:
    """All connections of the gateway to the servers of models."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._idle: defaultdict[Origin, deque[_Connection]] = defaultdict(deque)
        self._tls: ssl.SSLContext | None = None

    @contextlib.asynccontextmanager
    async def ask(self, url: str, request: tuple[str, str, Headers], body: bytes) -> AsyncIterator[UpstreamAnswer]:
        """Send a request (its method, target and headers) to the server of *url*, and yield the answer's head."""
        origin = origin_of(url, self._environ)
        connection, answer = await self._begin(origin, request, body)
        try:
            yield answer
        finally:
            if connection.is_reusable:
                self._keep(origin, connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _begin(
        self, origin: Origin, request: tuple[str, str, Headers], body: bytes
    ) -> tuple[_Connection, UpstreamAnswer]:
        """Ask on an idle connection; if the server has closed it meanwhile, the request has not failed.

        It is sent twice at most: the server may have charged for what it did not answer.
        """
        if (idle := self._take_idle(origin)) is not None:
            with contextlib.suppress(UpstreamFailed):
                return idle, await _ask(idle, origin, request, body)
        connection = await self._connect(origin)
        return connection, await _ask(connection, origin, request, body)

    def _take_idle(self, origin: Origin) -> _Connection | None:
        now, connections = asyncio.get_running_loop().time(), self._idle[origin]
        while connections:
            connection = connections.pop()
            if now - connection.idle_since < IDLE_SECONDS and not connection.reader.at_eof():
                return connection
            connection.close()
        return None

    def _keep(self, origin: Origin, connection: _Connection) -> None:
        connection.state.start_next_cycle()
        connection.idle_since = asyncio.get_running_loop().time()
        connections = self._idle[origin]
        connections.append(connection)
        while len(connections) > MOST_IDLE:
            connections.popleft().close()

    async def _connect(self, origin: Origin) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._open(origin)
        except TimeoutError:
            raise UpstreamFailed(f"{origin.authority} could not be reached within {CONNECT_SECONDS:g} s") from None
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise UpstreamFailed(f"{origin.authority} could not be reached: {error}") from None

    async def _open(self, origin: Origin) -> _Connection:
        tls = self._context() if origin.scheme == "https" else None
        if origin.proxy is None:
            return _Connection(*await asyncio.open_connection(origin.host, origin.port, ssl=tls))
        proxy = urlsplit(origin.proxy)
        reader, writer = await asyncio.open_connection(proxy.hostname, proxy.port or 80)
        await _tunnel(reader, writer, origin)
        if tls is not None:
            await writer.start_tls(tls, server_hostname=origin.host)
        return _Connection(reader, writer)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            for name in CERTIFICATES:
                if os.path.isfile(self._environ.get(name, "")):  # noqa: PTH113 - of a variable
                    self._tls.load_verify_locations(self._environ[name])
        return self._tls


async def _tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, origin: Origin) -> None:
    place = f"{origin.host}:{origin.port}"
    writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.") or head[9:12] != b"200":
        raise UpstreamFailed(f"the proxy refused a connection to {place}")


async def _ask(
    connection: _Connection, origin: Origin, request: tuple[str, str, Headers], body: bytes
) -> UpstreamAnswer:
    method, target, headers = request
    length = [(b"content-length", str(len(body)).encode())] if body or method == "POST" else []
    head = h11.Request(method=method, target=target, headers=[(b"host", origin.authority.encode()), *headers, *length])
    try:
        first, rest = body[:PIECE_BYTES], range(PIECE_BYTES, len(body), PIECE_BYTES)
        await connection.send(head, *((h11.Data(data=first),) if first else ()))
        for start in rest:  # all of a large one at once would hold other streams up
            await connection.send(h11.Data(data=body[start : start + PIECE_BYTES]))
        await connection.send(h11.EndOfMessage())
        event = await connection.receive()
        while isinstance(event, h11.InformationalResponse):
            event = await connection.receive()
    except (OSError, h11.ProtocolError, TimeoutError) as error:
        connection.close()
        raise UpstreamFailed(f"{origin.authority} did not answer: {error or type(error).__name__}") from None
    except BaseException:
        connection.close()
        raise
    if not isinstance(event, h11.Response):
        connection.close()
        raise UpstreamFailed(f"{origin.authority} closed the connection without an answer")
    return UpstreamAnswer(event.status_code, list(event.headers), connection)
