"""`shoal mcp --http`: the server on a port of this machine, for whoever has its token."""

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mcp.server.fastmcp import FastMCP
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.dashboard.access import local_hosts
from shoal.dashboard.http_server import QuietProtocol, serve_app
from shoal.dashboard.server import LOOPBACK, LOOPBACK_NAMES, bind_port

PATH = "/mcp"
MAX_BODY_BYTES = 2**20
MAX_SESSIONS = 100
"""Clients that are connected at the same time."""
MAX_CONNECTIONS = 400
MAX_REQUESTS = 200
"""Requests under way: each client has one open for news, and one for each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenListening:
    """Where the server listens, and the token that opens it."""

    socket: socket.socket
    hosts: frozenset[str]
    address: str
    token: str


@contextlib.contextmanager
def listen(port: int, token: str) -> Iterator[TokenListening]:
    """Listen on *port* of this machine alone; 0 takes any free port."""
    with bind_port(LOOPBACK, port) as bound:
        number: int = bound.getsockname()[1]
        address = f"http://{LOOPBACK}:{number}{PATH}"
        yield TokenListening(socket=bound, hosts=local_hosts(LOOPBACK_NAMES, number), address=address, token=token)


async def serve_http(server: FastMCP[None], listening: TokenListening) -> None:
    """Serve *server* until interrupted."""
    server.settings.streamable_http_path = PATH
    server.settings.max_sessions = MAX_SESSIONS
    server.settings.max_request_body_size = MAX_BODY_BYTES
    await serve_app(TokenGuard(server.streamable_http_app(), listening), listening.socket, protocol=_Protocol)


class TokenGuard:
    """Lets through only whoever has the token, and never a page of a browser that was sent here by another site."""

    def __init__(self, app: ASGIApp, listening: TokenListening) -> None:
        self._app = app
        self._hosts = listening.hosts
        self._origins = {f"http://{host}" for host in listening.hosts}
        self._words = f"bearer {listening.token}".encode()
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refuse(Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        self._requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests -= 1

    def _refuse(self, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return PlainTextResponse("unknown Host\n", 421)
        if {origin.lower() for origin in headers.getlist("origin")} - self._origins:
            return PlainTextResponse("foreign Origin\n", 403)
        if not self._is_allowed(headers.getlist("authorization")):
            why = "this server needs the token of `shoal mcp --http`, as `Authorization: Bearer TOKEN`\n"
            return PlainTextResponse(why, 401, {"www-authenticate": "Bearer"})
        if self._requests >= MAX_REQUESTS:
            return PlainTextResponse("too many requests at a time\n", 503, {"retry-after": "1"})
        return None

    def _is_allowed(self, given: list[str]) -> bool:
        if len(given) != 1:
            return False
        kind, _, token = given[0].partition(" ")
        return hmac.compare_digest(f"{kind.lower()} {token.strip()}".encode(), self._words)


class _Protocol(QuietProtocol):
    """Closes silent connections earlier when there are many, so that a flood of them keeps nobody out."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            silent = next(_list_silent(self.connections), None)
            (silent or self).transport.close()


def _list_silent(connections: Iterable[object]) -> Iterator[QuietProtocol]:
    quiet = [each for each in connections if isinstance(each, QuietProtocol) and each.is_idle]
    return iter(sorted(quiet, key=lambda each: each.made_at))
