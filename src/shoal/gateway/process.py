"""The gateway's own process: the only one that has the keys; it ends with whoever started it."""

import asyncio
import contextlib
import dataclasses
import functools
import os
import resource
import socket

from shoal.gateway.arrivals import serve_listener
from shoal.gateway.connect import ConnectProxy, HostDenial
from shoal.gateway.control_socket import ControlSocket, Message
from shoal.gateway.hosts import HostRule
from shoal.gateway.model_calls import ModelCalls, Tell
from shoal.gateway.server import SessionServer
from shoal.model.gateway import SessionOrder

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
            await gateway.closed.wait()
            os._exit(0)  # nobody is left to answer, and there is nothing to keep


class _GatewayProcess:
    """Opens and closes sessions as the coordinator says."""

    def __init__(self, end: socket.socket, group: asyncio.TaskGroup) -> None:
        self.closed = asyncio.Event()
        self._group = group
        self._calls = ModelCalls(os.environ)
        self._sessions: dict[str, asyncio.Task[None]] = {}
        self._control = ControlSocket(end, self._receive, self.closed.set)

    def _receive(self, message: Message, descriptors: list[int]) -> None:
        match message:
            case {"do": "open", "order": order}:
                self._open(SessionOrder.of(order), [socket.socket(fileno=fd) for fd in descriptors])
            case {"do": "close", "session": str(session)}:
                self._close(session)

    def _open(self, order: SessionOrder, listeners: list[socket.socket]) -> None:
        self._sessions[order.session] = self._group.create_task(self._serve_session(order, listeners))

    async def _serve_session(self, order: SessionOrder, listeners: list[socket.socket]) -> None:
        model_listener, connect_listener, *loopback_listeners = listeners
        server = SessionServer(order, self._calls, self._control.send)
        rules = [HostRule.parse(rule) for rule in order.hosts]
        proxy = ConnectProxy(rules=rules, report=_DenialReport(order.session, self._control.send))
        async with asyncio.TaskGroup() as group:
            group.create_task(serve_listener(model_listener, server.serve))
            group.create_task(serve_listener(connect_listener, proxy.serve))
            for listener in loopback_listeners:
                port = listener.getsockname()[1]
                rule = next(rule for rule in rules if rule.is_loopback and rule.port == port)
                group.create_task(serve_listener(listener, functools.partial(proxy.serve, loopback=rule)))

    def _close(self, session: str) -> None:
        """End a session, and report that after everything else about it."""
        closed = {"event": "closed", "session": session}
        task = self._sessions.pop(session, None)
        if task is None:
            self._control.send(closed)
        else:
            task.add_done_callback(lambda _: self._control.send(closed))
            task.cancel()


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
