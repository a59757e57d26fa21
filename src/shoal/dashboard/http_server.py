"""Run a web application on a socket until a signal: patient with nobody, so that silent clients hold no place."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

GRACE_SECONDS = 1
REQUEST_SECONDS = 10.0
"""In which a request must have come, after the connection or the answer before."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class QuietProtocol(H11Protocol):
    """Closes a connection without a request under way, so that silent or very slow clients hold no place."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.made_at = self.loop.time()
        self._look_later()

    @property
    def is_idle(self) -> bool:
        """Say whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def _look_later(self) -> None:
        self.loop.call_later(REQUEST_SECONDS, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self.is_idle:
            self.transport.close()
        else:
            self._look_later()


async def serve_app(
    app: ASGIApp,
    bound: socket.socket,
    *,
    before_end: Callable[[], Awaitable[None]] | None = None,
    protocol: type[QuietProtocol] = QuietProtocol,
    limit_concurrency: int | None = None,
) -> None:
    """Serve *app* until a signal; *before_end* ends the answers that would go on."""
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=limit_concurrency,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)
    stop = asyncio.Event()
    with _on_signals(stop.set):
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[bound]))
            stopping = group.create_task(stop.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if before_end is not None:
                await before_end()
            server.should_exit = True


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
