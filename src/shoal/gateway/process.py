"""The gateway's own process: the only one that has the keys; it ends with whoever started it."""

import asyncio
import contextlib
import os
import resource
import socket

from shoal.gateway.control_socket import ControlSocket, Message
from shoal.gateway.model_calls import ModelCalls
from shoal.gateway.server import SessionServer
from shoal.model.gateway import SessionOrder


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
            os._exit(0)  # nobody is left to answer to, and nothing is to be kept


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
        model_listener, connect_listener = listeners
        connect_listener.close()
        server = SessionServer(order, self._calls, self._control.send)
        task = self._group.create_task(server.serve(model_listener))
        self._sessions[order.session] = task

    def _close(self, session: str) -> None:
        """End a session, and say so after all else that is to be said of it."""
        closed = {"event": "closed", "session": session}
        task = self._sessions.pop(session, None)
        if task is None:
            self._control.send(closed)
        else:
            task.add_done_callback(lambda _: self._control.send(closed))
            task.cancel()
