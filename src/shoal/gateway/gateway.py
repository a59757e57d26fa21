"""The coordinator's side of the gateway: start processes when needed, open sessions, receive reports."""

import asyncio
import contextlib
import dataclasses
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path

from shoal import proc
from shoal.errors import Broken, first_error
from shoal.gateway.arrivals import MOST_CONNECTIONS, ServeConnection, serve_connection, serve_listener
from shoal.gateway.control_socket import MOST_DESCRIPTORS, ControlSocket, Message
from shoal.gateway.hosts import HostRule
from shoal.model.command import Argument, Command, SharedSocket
from shoal.model.gateway import CONNECT_PORT, PORT, SessionOrder
from shoal.proc.namespace import Namespace
from shoal.proc.output import HeadBuffer

LISTENER = Path(__file__).with_name("listen_program.py")
START = "import sys; sys.path[:] = sys.argv[2:]; from shoal.gateway.process import main; main(int(sys.argv[1]))"
ENVIRONMENT = (
    *("PATH", "HOME", "XDG_STATE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)
"""What of the user's environment concerns how servers are reached; no key is among it."""
LISTEN_SECONDS = 15.0
CLOSE_SECONDS = 5.0
SETTLE_SECONDS = 35.0
"""How long the gateway may take to end: a login that is being renewed must not be cut off."""
STDERR_BYTES = 4096
CONTROL = "control"

OnMessage = Callable[[Message], None]
"""Is told what the gateway says about a session."""


Services = Mapping[int, ServeConnection]
"""What the coordinator itself serves in the sandbox of a session, by port; nobody else can connect there."""

OnReceive = Callable[[Message, list[int]], None]
"""Is given a message, and the descriptors beside it, which it has to close."""


class _Child:
    """A process of ours with a control socket, for as long as a run lasts."""

    def __init__(
        self, process: proc.Process, errors: HeadBuffer, receive: Callable[[Message, list[int]], None]
    ) -> None:
        self.lost = asyncio.Event()
        self._errors = errors
        self.control = ControlSocket(process.find_socket(CONTROL), receive, self.lost.set)

    @property
    def complaint(self) -> str:
        """The last line that it printed."""
        lines = self._errors.content().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


@contextlib.asynccontextmanager
async def _started(command: Command, receive: OnReceive, *, grace: float = 0.0) -> AsyncIterator[_Child]:
    errors = HeadBuffer(STDERR_BYTES)
    async with proc.open_process(command, sink=lambda _stream, data: errors.feed(data), grace=grace) as process:
        child = _Child(process, errors, receive)
        try:
            yield child
        finally:
            child.control.close()


class Listeners:
    """Makes listening sockets in the networks of sandboxes."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[list[int]]] = {}
        self._last = 0

    def receive(self, message: Message, descriptors: list[int]) -> None:
        """Hand sockets to the callers that wait for them."""
        waiter = self._waiting.pop(message["id"], None)
        if waiter is None or waiter.done():
            for descriptor in descriptors:
                os.close(descriptor)
        elif "error" in message:
            waiter.set_exception(Broken(f"nobody can listen in the sandbox: {message['error']}"))
        else:
            waiter.set_result(descriptors)

    async def listen(self, child: _Child, network: int, ports: Sequence[int]) -> list[int]:
        """Listen in *network*, which is closed here; the caller owns the sockets."""
        self._last += 1
        waiter: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting[self._last] = waiter
        child.control.send({"id": self._last, "ports": list(ports)}, [network])
        try:
            async with asyncio.timeout(LISTEN_SECONDS):
                return await waiter
        except TimeoutError:
            raise Broken(f"nobody could listen in the sandbox within {LISTEN_SECONDS:g} s: {child.complaint}") from None


class ServiceSession:
    """What the coordinator itself serves in the sandbox of one session.

    A sandbox of this machine calls `listen`. For one elsewhere, whoever carries its bytes lets it listen on `ports`,
    and calls `connect` for each connection that is made there.
    """

    def __init__(self, gateway: "Gateway", name: str, services: Services) -> None:
        self._gateway = gateway
        self._name = name
        self._services = services
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)
        self._serving: list[asyncio.Task[None]] = []

    @property
    def ports(self) -> tuple[int, ...]:
        """What listens in the sandbox."""
        return tuple(self._services)

    async def listen(self, namespace: Namespace) -> None:
        """Listen in a sandbox whose command has not begun; if it has already died, its starter reports that."""
        if (network := namespace.open_network()) is not None:
            self.serve(await self._gateway.make_listeners(network, self.ports))

    def serve(self, listeners: Sequence[int]) -> None:
        """Serve listening sockets, one for each of `ports`, which are closed here."""
        for port, listener in zip(self.ports, listeners, strict=True):
            self._serve(port, listener)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to one of `ports` on behalf of a sandbox elsewhere; any other port refuses it."""
        if port not in self.ports:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nothing listens on port {port} of {self._name}")
        ours, theirs = socket.socketpair()
        self._connect(port, theirs)
        return await asyncio.open_connection(sock=ours)

    def stop_services(self) -> None:
        """End the connections to services."""
        for task in self._serving:
            task.cancel()

    def _serve(self, port: int, listener: int) -> None:
        self._keep(serve_listener(socket.socket(fileno=listener), self._services[port]))

    def _connect(self, port: int, end: socket.socket) -> None:
        self._keep(serve_connection(end, self._services[port], self._room))

    def _keep(self, serving: Coroutine[None, None, None]) -> None:
        self._serving = [task for task in self._serving if not task.done()]
        self._serving.append(self._gateway.start_service(serving))


class GatewaySession(ServiceSession):
    """What the gateway does for one session; *lost* is set when its process has ended before the session."""

    def __init__(
        self, gateway: "Gateway", order: SessionOrder, child: _Child, on_message: OnMessage, services: Services
    ) -> None:
        super().__init__(gateway, order.session, services)
        self.on_message = on_message
        self.order = order
        self.access = order.access
        self.closed = asyncio.Event()
        self._child = child
        child.control.send({"do": "open", "order": dataclasses.asdict(order)})

    @property
    def lost(self) -> asyncio.Event:
        """Set when the gateway's process has ended."""
        return self._child.lost

    @property
    def ports(self) -> tuple[int, ...]:
        """What listens in the sandbox: the model, the proxy, ports of this host that are allowed, and services.

        Clients ask no proxy for the ports of their own host, so those are served in the sandbox itself.
        """
        rules = (HostRule.parse(host) for host in self.order.hosts)
        own = (PORT, CONNECT_PORT, *self._services)
        loopback = dict.fromkeys(rule.port for rule in rules if rule.is_loopback and rule.port not in own)
        return (*own, *loopback)[:MOST_DESCRIPTORS]

    def serve(self, listeners: Sequence[int]) -> None:
        """Serve listening sockets, one for each of `ports`, which are closed here."""
        away: dict[int, int] = {}
        for port, listener in zip(self.ports, listeners, strict=True):
            if port in self._services:
                self._serve(port, listener)
            else:
                away[port] = listener
        self._child.control.send(
            {"do": "listen", "session": self.order.session, "ports": list(away)}, list(away.values())
        )

    def _connect(self, port: int, end: socket.socket) -> None:
        if port in self._services:
            super()._connect(port, end)
        else:
            message = {"do": "connect", "session": self.order.session, "ports": [port]}
            self._child.control.send(message, [end.detach()])


class Gateway:
    """The gateway of one run; its processes are started with the first session that needs them."""

    def __init__(self, environ: Mapping[str, str], group: asyncio.TaskGroup) -> None:
        self._group = group
        self._environ = {name: environ[name] for name in ENVIRONMENT if environ.get(name)}
        self._processes = contextlib.AsyncExitStack()
        self._starting = asyncio.Lock()
        self._child: _Child | None = None
        self._listener: _Child | None = None
        self._listeners = Listeners()
        self._sessions: dict[str, GatewaySession] = {}
        self.is_tried = False
        """Whether listening in a sandbox has worked here."""

    @contextlib.asynccontextmanager
    async def hold_session(
        self, order: SessionOrder, on_message: OnMessage, services: Services | None = None
    ) -> AsyncIterator[GatewaySession]:
        """Allow a session what *order* says until the block ends; all reports on it arrive before that."""
        session = GatewaySession(self, order, await self._process(), on_message, services or {})
        self._sessions[session.order.session] = session
        try:
            yield session
        finally:
            await self._close(session)

    @contextlib.asynccontextmanager
    async def hold_services(self, name: str, services: Services) -> AsyncIterator[ServiceSession]:
        """Serve ports in a sandbox that has no model and no hosts, until the block ends; nothing else is started."""
        session = ServiceSession(self, name, services)
        try:
            yield session
        finally:
            session.stop_services()

    async def make_listeners(self, network: int, ports: Sequence[int]) -> list[int]:
        """Listen on *ports* of a sandbox, whose *network* is closed here."""
        async with self._starting:
            if self._listener is None or self._listener.lost.is_set():
                argv = (sys.executable, "-I", "-S", str(LISTENER), SharedSocket(CONTROL))
                started = _started(Command(argv=argv, cwd=Path("/")), self._listeners.receive)
                self._listener = await self._processes.enter_async_context(started)
        return await self._listeners.listen(self._listener, network, ports)

    async def try_listener(self, namespace: Namespace) -> None:
        """Listen in a trial sandbox, and stop at once."""
        if (network := namespace.open_network()) is not None:
            for listener in await self.make_listeners(network, (PORT, CONNECT_PORT)):
                os.close(listener)
            self.is_tried = True

    def start_service(self, serving: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Serve in this process, until the gateway is closed."""
        return self._group.create_task(serving)

    async def close(self) -> None:
        """End the processes."""
        await self._processes.aclose()

    async def _process(self) -> _Child:
        async with self._starting:
            if self._child is None or self._child.lost.is_set():
                # not -S: it needs our installed packages
                argv: tuple[Argument, ...] = (sys.executable, "-I", "-c", START, SharedSocket(CONTROL), *sys.path)
                command = Command(argv=argv, cwd=Path("/"), env=self._environ)
                self._child = await self._processes.enter_async_context(
                    _started(command, self._receive, grace=SETTLE_SECONDS)
                )
            return self._child

    async def _close(self, session: GatewaySession) -> None:
        """Close a session in the gateway after its last report."""
        session.stop_services()
        name = session.order.session
        session._child.control.send({"do": "close", "session": name})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while not session.closed.is_set() and not session.lost.is_set():
                    await _wait_for_either(session.closed, session.lost)
        self._sessions.pop(name, None)

    def _receive(self, message: Message, descriptors: list[int]) -> None:
        session = self._sessions.get(message["session"])
        if session is None:
            return
        if message["event"] == "closed":
            session.closed.set()
        else:
            session.on_message(message)


async def _wait_for_either(first: asyncio.Event, second: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(event.wait()) for event in (first, second)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def open_gateway(environ: Mapping[str, str]) -> AsyncIterator[Gateway]:
    """Open a gateway; its processes start when they are first needed."""
    error: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            gateway = Gateway(environ, group)
            try:
                yield gateway
            except BaseException as raised:  # passed around the task group, which would wrap it
                error = raised
            finally:
                await gateway.close()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    if error is not None:
        raise error
