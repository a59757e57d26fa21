"""Who may use the dashboard: the browser that opened the one-time link, under the right host name, from our pages."""

import asyncio
import contextlib
import hmac
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

WRITE_HEADER = "x-shoal"
MAX_BODY_BYTES = 256 * 1024
BODY_SECONDS = 20.0
MAX_PASSWORD_TRIES = 20
SAFE_METHODS = ("GET", "HEAD")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
NO_ENTRY = (
    "This page needs the link that `shoal serve` printed.\n"
    "Each link opens one browser once; press Enter in the terminal of `shoal serve` for a new one.\n"
)
NOT_WHOLE = "the request did not come whole, or is too large\n"
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"
LOGIN_PAGE = Path(__file__).parent / "page" / "login.html"


@dataclass(slots=True, kw_only=True)
class Access:
    """The host names under which the dashboard may be opened, and the secrets that open it."""

    hosts: frozenset[str]
    """What `Host` may say, in lower case, with the port."""
    cookie: str
    """The name of the cookie: browsers do not keep the cookies of two ports apart."""
    password: str | None = None
    """Opens the dashboard beside the link, where it listens on other addresses."""
    _codes: set[str] = field(default_factory=set)
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _tries: int = 0

    def make_code(self) -> str:
        """Make the secret part of a link; earlier links that were not used become invalid."""
        self._codes = {secrets.token_urlsafe(24)}
        return next(iter(self._codes))

    def use_code(self, code: str) -> bool:
        """Return whether *code* opens the dashboard; each code works once."""
        known = {own for own in self._codes if _is_same(own, code)}
        self._codes -= known
        return bool(known)

    def use_password(self, password: str) -> bool:
        """Return whether *password* is right; after too many wrong ones, all are refused."""
        if self.password is None or self._tries >= MAX_PASSWORD_TRIES:
            return False
        is_right = _is_same(self.password, password)
        self._tries = 0 if is_right else self._tries + 1
        return is_right

    def is_open_to(self, cookies: str) -> bool:
        """Return whether a request with these *cookies* comes from an admitted browser."""
        try:
            morsel = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and _is_same(morsel.value, self._session)

    def let_in(self, target: str) -> Response:
        """Give the browser its cookie, and send it on.

        Not by a redirect: a link in the page of a web terminal is another site's, and so is where it redirects to, to
        which no browser sends a strict cookie.
        """
        response = PlainTextResponse("Welcome to Shoal.\n", headers={"refresh": f"0; url={target}"})
        response.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
        return response


def _is_same(mine: str, given: str) -> bool:
    return hmac.compare_digest(mine.encode(), given.encode(errors="replace"))


def find_owner(client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> int | None:
    """Find the user of this machine who connected from *client* to *server*; `None` for a remote user."""
    if client is None or server is None or not client[1] or not server[1]:
        return None
    ends = f":{client[1]:04X}", f":{server[1]:04X}"
    for table in SOCKET_TABLES:
        with contextlib.suppress(OSError):
            for _, local, remote, state, *rest in map(str.split, table.read_text().splitlines()):
                if (local[-5:], remote[-5:], state) == (*ends, ESTABLISHED):
                    return int(rest[3])
    return None


class PageGuard:
    """Passes a request to *app*, or refuses it before anything reads it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every answer carries the security headers."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        sender = _with_headers(send, is_static=scope["path"].startswith("/static/"))
        refusal = self._refuse(Headers(scope=scope), scope["method"])
        if refusal is not None:
            await refusal(scope, receive, sender)
            return
        path: str = scope["path"]
        if path.startswith("/open/") and scope["method"] == "GET":
            await self._open(path.removeprefix("/open/"), scope)(scope, receive, sender)
        elif path == "/login" and self._access.password is not None:
            await (await self._log_in(Request(scope, _bound_body(receive))))(scope, receive, sender)
        elif self._access.is_open_to(Headers(scope=scope).get("cookie", "")):
            await self._app(scope, _bound_body(receive), sender)
        else:
            await self._turn_away(path)(scope, receive, sender)

    def _refuse(self, headers: Headers, method: str) -> Response | None:
        """Refuse what our pages never send: a foreign host name or origin, or a write without our header."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._access.hosts:
            return PlainTextResponse("unknown Host\n", 421)
        origins = {origin.lower() for origin in headers.getlist("origin")}
        if origins - {f"http://{host}" for host in self._access.hosts}:
            return PlainTextResponse("foreign Origin\n", 403)
        site = headers.get("sec-fetch-site", "none")
        is_top_level = headers.get("sec-fetch-mode") == "navigate" and method in SAFE_METHODS
        if site not in ("same-origin", "none") and not is_top_level:
            return PlainTextResponse("foreign page\n", 403)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and int(length[:12]) <= MAX_BODY_BYTES):
            return PlainTextResponse("too large\n", 413)
        if method not in (*SAFE_METHODS, "POST"):
            return PlainTextResponse("method not allowed\n", 405)
        return None

    def _open(self, code: str, scope: Scope) -> Response:
        owner = find_owner(scope.get("client"), scope.get("server"))
        if owner not in (None, os.getuid(), 0):  # a command line, such as a browser's, shows its link to all users
            return PlainTextResponse("another user of this machine opened `shoal serve`\n", 403)
        if self._access.use_code(code):
            return self._access.let_in("/")
        return PlainTextResponse(f"This link was used already, or is not ours.\n{NO_ENTRY}", 403)

    async def _log_in(self, request: Request) -> Response:
        if request.method != "POST":
            return FileResponse(LOGIN_PAGE)
        try:
            body = await request.body()
        except ClientDisconnect:
            return PlainTextResponse(NOT_WHOLE, 400)
        given = parse_qs(body.decode(errors="replace")).get("password", [""])[0]
        if self._access.use_password(given):
            return self._access.let_in("/")
        return PlainTextResponse("wrong password\n", 403)

    def _turn_away(self, path: str) -> Response:
        if self._access.password is None:
            return PlainTextResponse(NO_ENTRY, 403)
        return RedirectResponse("/login", 303) if path == "/" else PlainTextResponse("log in first\n", 403)


def is_ours(request: Request) -> bool:
    """Return whether a write comes from our page: other pages and forms cannot send this header."""
    return request.headers.get(WRITE_HEADER) == "1"


def local_hosts(names: Iterable[str], port: int) -> frozenset[str]:
    """List the allowed values of `Host` for a dashboard on *port* of these *names*."""
    return frozenset(f"{name}:{port}" for name in names) | frozenset(names if port == 80 else ())


def _with_headers(send: Send, *, is_static: bool) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
            if is_static:  # cached, but revalidated each time: it changes with the version
                headers["cache-control"] = "no-cache"
        await send(message)

    return sender


def _bound_body(receive: Receive) -> Receive:
    """Limit the size of a request's body, and the time to wait for it."""
    read, is_whole = 0, False
    due = asyncio.get_running_loop().time() + BODY_SECONDS

    async def receiver() -> Message:
        nonlocal read, is_whole
        if is_whole:  # what follows is the end of the connection
            return await receive()
        try:
            async with asyncio.timeout_at(due):
                message = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        read += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        return message if read <= MAX_BODY_BYTES else {"type": "http.disconnect"}

    return receiver
