"""A carrier to a node that lies: it speaks the protocol until a session starts, and then does what a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from shoal.executors.carriers.kind import NodeStream
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.frames import GREETING, FrameKind, encode_frame, read_frame
from shoal.executors.wire.link import LinkRole, NodeLink, open_link
from shoal.executors.wire.messages import (
    PROTOCOL,
    Done,
    ListWork,
    Message,
    MirrorOpened,
    NodeHello,
    OpenMirror,
    OpenNodeRun,
    RunOpened,
    StartSession,
    TakePack,
    WorkListed,
    encode_message,
)
from shoal.model.nodes import NodeAddress, NodeOffer
from tests.executors.test_wire import Wire

Attack = Callable[[NodeLink, StartSession], Awaitable[None]]
ATTACKS: list[Attack] = []
"""What the node does when a session starts; the last one counts."""


@dataclass(frozen=True)
class HostileCarrier:
    """Connects to the lying node, which is in this process."""

    address: NodeAddress

    async def find_nodes(self) -> Sequence[NodeAddress]:
        return (self.address,)

    @contextlib.asynccontextmanager
    async def connect(self, node: NodeAddress) -> AsyncIterator[NodeStream]:
        to_node, to_us = asyncio.StreamReader(), asyncio.StreamReader()
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(_serve(to_node, Wire(to_us)))
            try:
                yield NodeStream(reader=to_us, writer=Wire(to_node), has_died=lambda: True)
            finally:
                serving.cancel()


@contextlib.asynccontextmanager
async def open_carrier(address: NodeAddress, environ: Mapping[str, str]) -> AsyncIterator[HostileCarrier]:
    """Open the carrier."""
    yield HostileCarrier(address)


async def _serve(reader: asyncio.StreamReader, writer: Wire) -> None:
    hello = NodeHello(protocol=PROTOCOL, version="0", offer=NodeOffer(version="0", capacity=4))
    writer.write(GREETING + encode_frame(FrameKind.MESSAGE, encode_message(hello)))
    await read_frame(reader)
    async with open_link(reader, writer, LinkRole(is_coordinator=False, lease_seconds=60)) as link:
        link.on_message = lambda message, channel: _answer(link, message, channel)
        await link.lost.wait()


def _answer(link: NodeLink, message: Message, channel: Channel | None) -> None:
    match message:
        case OpenMirror(id=number):
            link.post(MirrorOpened(re=number))
        case TakePack(id=number) if channel is not None:
            link.start(_swallow(link, channel, Done(re=number)))
        case OpenNodeRun(id=number) if channel is not None:
            opened = RunOpened(re=number, sandbox="bubblewrap", workspace="overlay", limits="none")
            link.start(_swallow(link, channel, opened))
        case ListWork(id=number):
            link.post(WorkListed(re=number))
        case StartSession() if channel is not None:
            link.start(_attack(link, channel, message))
        case _:
            pass


async def _swallow(link: NodeLink, channel: Channel, answer: Message) -> None:
    while await channel.read():
        pass
    await channel.finish()
    link.post(answer)


async def _attack(link: NodeLink, channel: Channel, message: StartSession) -> None:
    while await channel.read():
        pass
    await channel.finish()
    with contextlib.suppress(OSError):
        await ATTACKS[-1](link, message)
