"""Serve the dashboard on an address of this machine, until it is interrupted."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.dashboard.access import Access, local_hosts
from shoal.dashboard.app import make_app
from shoal.dashboard.feed import ChangeFeed
from shoal.dashboard.http_server import serve_app
from shoal.errors import BadInput

LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = (LOOPBACK, "localhost", "[::1]")
MAX_CONNECTIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the dashboard listens, and who may open it."""

    socket: socket.socket
    access: Access
    address: str
    """The beginning of its links; empty for a unix socket."""

    def make_link(self) -> str:
        """Make a link that opens one browser, once."""
        return f"{self.address}/open/{self.access.make_code()}"


@contextlib.contextmanager
def bind_port(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on *port* of *host*; 0 takes any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError as error:
            raise BadInput(
                f"port {port} of {host} cannot be used: {error.strerror}; name another with --port"
            ) from None
        bound.listen(128)
        yield bound


@contextlib.contextmanager
def listen_on_port(host: str, port: int, password: str | None) -> Iterator[Listening]:
    """Listen on *port* of *host* for browsers."""
    with bind_port(host, port) as bound:
        number: int = bound.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        names = LOOPBACK_NAMES if host in (LOOPBACK, "::1") else (shown, *LOOPBACK_NAMES)
        access = Access(hosts=local_hosts(names, number), cookie=f"shoal-{number}", password=password)
        yield Listening(socket=bound, access=access, address=f"http://{shown}:{number}")


@contextlib.contextmanager
def listen_on_socket(path: Path) -> Iterator[Listening]:
    """Listen on a unix socket that only this user can reach."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        before = os.umask(0o177)
        try:
            bound.bind(str(path))
        except OSError as error:
            raise BadInput(f"{path} cannot be listened on: {error.strerror}") from None
        finally:
            os.umask(before)
        try:
            bound.listen(128)
            access = Access(hosts=frozenset(("localhost", *local_hosts(LOOPBACK_NAMES, 80))), cookie="shoal-socket")
            yield Listening(socket=bound, access=access, address="http://localhost")
        finally:
            path.unlink(missing_ok=True)


async def serve(
    listening: Listening, feed: ChangeFeed, environ: Mapping[str, str], on_link: Callable[[str], None]
) -> None:
    """Serve until interrupted; Enter in the terminal calls *on_link* with a new link."""
    app = make_app(feed, listening.access, environ)
    with _on_enter(lambda: on_link(listening.make_link())):
        await serve_app(app, listening.socket, before_end=feed.close, limit_concurrency=MAX_CONNECTIONS)


@contextlib.contextmanager
def _on_enter(act: Callable[[], None]) -> Iterator[None]:
    """Call *act* for each line that is typed, if there is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if os.read(stdin, 4096):
            act()
        else:
            loop.remove_reader(stdin)

    loop.add_reader(stdin, read)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
