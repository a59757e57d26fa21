"""Serve the dashboard on an address of this machine, until it is interrupted."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from shoal.dashboard.access import Access, local_hosts
from shoal.dashboard.app import make_app
from shoal.dashboard.feed import ChangeFeed
from shoal.errors import BadInput

LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = (LOOPBACK, "localhost", "[::1]")
MAX_CONNECTIONS = 200
GRACE_SECONDS = 1
REQUEST_SECONDS = 10.0
"""In which a request must have come, after the connection or the answer before."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
def listen_on_port(host: str, port: int, password: str | None) -> Iterator[Listening]:
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
    config = uvicorn.Config(
        make_app(feed, listening.access, environ),
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)
    stop = asyncio.Event()
    with _on_enter(lambda: on_link(listening.make_link())), _on_signals(stop.set):
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[listening.socket]))
            stopping = group.create_task(stop.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            await feed.close()
            server.should_exit = True


class _Protocol(H11Protocol):
    """Closes a connection without a request under way, so that silent or very slow clients hold no place."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_later()

    def _look_later(self) -> None:
        self.loop.call_later(REQUEST_SECONDS, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self._look_later()


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn's own handling would end the process before its socket is removed."""

    capture_signals = contextlib.nullcontext  # type: ignore[assignment]


@contextlib.contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call *stop* on Ctrl-C and similar signals."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


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
