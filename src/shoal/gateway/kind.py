"""The protocols of a gateway to models: of this process, or of another machine's."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from shoal.gateway.arrivals import ServeConnection
from shoal.gateway.control_socket import Message
from shoal.model.gateway import GatewayAccess, SessionOrder
from shoal.proc.namespace import Namespace


class OnMessage(Protocol):
    """Is told what the gateway says about a session."""

    def __call__(self, message: Message, /) -> None:
        """Take a message."""


class ListeningSession(Protocol):
    """What listens in the sandbox of one session."""

    async def listen(self, namespace: Namespace) -> None:
        """Listen in a sandbox whose command has not begun."""


class SessionGateway(ListeningSession, Protocol):
    """What a gateway does for one session."""

    order: SessionOrder

    @property
    def access(self) -> GatewayAccess:
        """What the sandbox needs to know."""

    @property
    def lost(self) -> asyncio.Event:
        """Set when nobody answers any more."""


class ModelGateway(Protocol):
    """The way of agents on `network: gateway` to their models."""

    is_tried: bool
    """Whether listening in a sandbox has worked here."""

    def hold_session(
        self, order: SessionOrder, on_message: OnMessage, services: Mapping[int, ServeConnection] | None = None
    ) -> AbstractAsyncContextManager[SessionGateway]:
        """Allow a session what *order* says until the block ends; all reports on it arrive before that."""

    def hold_services(
        self, name: str, services: Mapping[int, ServeConnection]
    ) -> AbstractAsyncContextManager[ListeningSession]:
        """Serve ports in a sandbox that has no model and no hosts, until the block ends."""

    async def make_listeners(self, network: int, ports: Sequence[int]) -> list[int]:
        """Listen on *ports* of a sandbox, whose *network* is closed here."""

    async def try_listener(self, namespace: Namespace) -> None:
        """Listen in a trial sandbox, and stop at once."""
