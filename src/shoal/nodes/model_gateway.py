"""The gateway to models of a session on a node: it listens in the sandbox here, and the coordinator answers."""

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import Broken
from shoal.executors.wire.link import LinkLost, NodeLink
from shoal.executors.wire.messages import CloseModel, Done, ModelConnected, ModelOpened, ModelSaid, OpenModel
from shoal.executors.wire.pump import pump
from shoal.gateway.arrivals import ServeConnection, serve_listener
from shoal.gateway.kind import ListeningSession, ModelGateway, OnMessage
from shoal.model.gateway import GatewayAccess, SessionOrder
from shoal.proc.namespace import Namespace

OPEN_SECONDS = 60.0
CLOSE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class SessionName:
    """A session on this node, and the fence of its attempt."""

    session: str
    fence: str


class CarriedGateway:
    """Opens the gateway of one session at its coordinator; *local* makes the sockets in sandboxes."""

    def __init__(self, link: NodeLink, name: SessionName, local: ModelGateway) -> None:
        self.is_tried = True
        self._link = link
        self._name = name
        self._local = local
        self._listening: dict[str, OnMessage] = {}

    @contextlib.asynccontextmanager
    async def hold_session(
        self, order: SessionOrder, on_message: OnMessage, services: Mapping[int, ServeConnection] | None = None
    ) -> AsyncIterator["CarriedSession"]:
        """Hold the gateway; the coordinator makes an *order* of its own, and serves its own services."""
        key = order.session.removeprefix(self._name.session).removeprefix("-")
        self._listening[key] = on_message
        try:
            asked = OpenModel(id=self._link.next_request(), session=self._name.session, fence=self._name.fence, key=key)
            opened = await self._link.ask(asked, ModelOpened, seconds=OPEN_SECONDS)
            held = CarriedSession(self._link, self._name, key, opened, self._local)
            try:
                yield held
            finally:
                held.stop()
                await self._close(key)  # all reports on it arrive before the answer
        finally:
            del self._listening[key]

    def hold_services(
        self, name: str, services: Mapping[int, ServeConnection]
    ) -> contextlib.AbstractAsyncContextManager[ListeningSession]:
        """Serve ports of this process: what they lead to is on this machine."""
        return self._local.hold_services(name, services)

    async def make_listeners(self, network: int, ports: Sequence[int]) -> list[int]:
        """Listen in the network of a sandbox of this machine."""
        return await self._local.make_listeners(network, ports)

    async def try_listener(self, namespace: Namespace) -> None:
        """Try that on this machine."""
        await self._local.try_listener(namespace)

    def note(self, said: ModelSaid) -> None:
        """Pass on what the coordinator's gateway says."""
        if (listener := self._listening.get(said.key)) is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # of another version, perhaps
                listener(json.loads(said.message))

    async def _close(self, key: str) -> None:
        closing = CloseModel(id=self._link.next_request(), session=self._name.session, fence=self._name.fence, key=key)
        with contextlib.suppress(LinkLost, TimeoutError):
            await self._link.ask(closing, Done, seconds=CLOSE_SECONDS)


class CarriedSession:
    """What the coordinator's gateway does for one session here."""

    def __init__(self, link: NodeLink, name: SessionName, key: str, opened: ModelOpened, local: ModelGateway) -> None:
        try:
            self.order = SessionOrder.of(json.loads(opened.order))
        except (ValueError, KeyError, TypeError) as error:
            raise Broken(f"the coordinator's gateway cannot be used by this version of Shoal: {error}") from None
        self._ports = opened.ports
        self._link = link
        self._name = name
        self._key = key
        self._local = local
        self._serving: list[asyncio.Task[None]] = []

    @property
    def access(self) -> GatewayAccess:
        """What the sandbox needs to know."""
        return self.order.access

    @property
    def lost(self) -> asyncio.Event:
        """Set when the coordinator is gone."""
        return self._link.lost

    async def listen(self, namespace: Namespace) -> None:
        """Listen in a sandbox whose command has not begun."""
        if (network := namespace.open_network()) is None:
            return
        listeners = await self._local.make_listeners(network, self._ports)
        for port, listener in zip(self._ports, listeners, strict=True):
            serving = serve_listener(socket.socket(fileno=listener), functools.partial(self._carry, port))
            self._serving.append(self._link.start(serving))

    def stop(self) -> None:
        """Accept no more connections, and end those that are open."""
        for task in self._serving:
            task.cancel()

    async def _carry(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = self._link.open_channel()
        connected = ModelConnected(
            session=self._name.session, fence=self._name.fence, key=self._key, port=port, channel=channel.number
        )
        try:
            await self._link.send(connected)
        except LinkLost:
            writer.close()
            return
        await pump(self._link, channel, reader, writer)
