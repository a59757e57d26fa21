"""The gateway's own process: the only one that has the keys; it ends with whoever started it."""

import asyncio
import contextlib
import dataclasses
import functools
import os
import resource
import signal
import socket

from shoal.errors import ShoalError
from shoal.gateway.arrivals import MOST_CONNECTIONS, ServeConnection, serve_connection, serve_listener
from shoal.gateway.connect import ConnectProxy, HostDenial
from shoal.gateway.control_socket import ControlSocket, Message
from shoal.gateway.hosts import HostRule
from shoal.gateway.model_calls import ModelCalls, Tell
from shoal.gateway.server import SessionServer
from shoal.model.gateway import CONNECT_PORT, PORT, SessionOrder

MOST_DENIALS = 200
"""Of one session that are told."""


def main(control: int) -> None:
    """Serve until the other end of *control* is closed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_serve(socket.socket(fileno=control)))


async def _serve(end: socket.socket) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            gateway = _GatewayProcess(end, group)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, gateway.closed.set)
            await gateway.closed.wait()
            await gateway.settle()
            os._exit(0)  # nobody is left to answer, and there is nothing to keep


class _GatewayProcess:
    """Opens and closes sessions as the coordinator says."""

    def __init__(self, end: socket.socket, group: asyncio.TaskGroup) -> None:
        self.closed = asyncio.Event()
        self._group = group
        self._calls = ModelCalls(os.environ, group)
        self._sessions: dict[str, _OpenSession] = {}
        self._control = ControlSocket(end, self._receive, self.closed.set)

    async def settle(self) -> None:
        """Finish what must not be cut off."""
        await self._calls.settle()

    def _receive(self, message: Message, descriptors: list[int]) -> None:
        match message:
            case {"do": "open", "order": order}:
                self._open(SessionOrder.of(order))
            case {"do": "listen" | "connect" as do, "session": str(name), "ports": list(ports)}:
                for port, fd in zip(ports, descriptors, strict=True):
                    if (session := self._sessions.get(name)) is None:
                        os.close(fd)
                    else:
                        session.serve(port, socket.socket(fileno=fd), is_listener=do == "listen")
            case {"do": "close", "session": str(name)}:
                self._close(name)

    def _open(self, order: SessionOrder) -> None:
        try:
            session = _OpenSession(order, self._calls, self._control.send)
        except ShoalError as error:  # its recording is damaged, say: that ends this session alone
            self._control.send({"event": "failed", "session": order.session, "why": str(error)})
            return
        session.task = self._group.create_task(session.run())
        self._sessions[order.session] = session

    def _close(self, session: str) -> None:
        """End a session, and report that after everything else about it."""
        closed = {"event": "closed", "session": session}
        opened = self._sessions.pop(session, None)
        if opened is None or opened.task is None:
            self._control.send(closed)
        else:
            opened.task.add_done_callback(lambda _: self._control.send(closed))
            opened.task.cancel()


class _OpenSession:
    """Serves the ports of one session's sandbox."""

    def __init__(self, order: SessionOrder, calls: ModelCalls, tell: Tell) -> None:
        self.task: asyncio.Task[None] | None = None
        rules = [HostRule.parse(rule) for rule in order.hosts]
        proxy = ConnectProxy(rules=rules, report=_DenialReport(order.session, tell))
        self._ports: dict[int, ServeConnection] = {
            rule.port: functools.partial(proxy.serve, loopback=rule) for rule in reversed(rules) if rule.is_loopback
        }
        self._ports |= {PORT: SessionServer(order, calls, tell).serve, CONNECT_PORT: proxy.serve}
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)
        self._arrived: asyncio.Queue[tuple[int, socket.socket, bool]] = asyncio.Queue()

    def serve(self, port: int, end: socket.socket, *, is_listener: bool) -> None:
        """Serve a listening socket of a sandbox, or a single connection to *port* there."""
        self._arrived.put_nowait((port, end, is_listener))

    async def run(self) -> None:
        """Serve what arrives, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                port, end, is_listener = await self._arrived.get()
                if (serve := self._ports.get(port)) is None:
                    end.close()
                elif is_listener:
                    group.create_task(serve_listener(end, serve))
                else:
                    group.create_task(serve_connection(end, serve, self._room))


class _DenialReport:
    """Reports refused hosts to the coordinator, each with its rule once, up to a maximum."""

    def __init__(self, session: str, tell: Tell) -> None:
        self._session = session
        self._tell = tell
        self._told: set[tuple[str, int | None]] = set()

    def __call__(self, denial: HostDenial) -> None:
        place = (denial.host, denial.port)
        if place in self._told or len(self._told) >= MOST_DENIALS:
            return
        self._told.add(place)
        self._tell({"event": "denied", "session": self._session, **dataclasses.asdict(denial)})
