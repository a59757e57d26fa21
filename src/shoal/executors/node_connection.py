"""A connection to one node: greeted, with a mirror of the repository and a run that can take sessions."""

import asyncio
import contextlib
import platform
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from shoal import __version__
from shoal.errors import BadInput, first_error
from shoal.executors.carriers.kind import NodeStream, NodeUnavailable
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.frames import FrameKind, ProtocolError, encode_frame, read_frame, skip_banner
from shoal.executors.wire.link import LinkRole, NodeLink, open_link
from shoal.executors.wire.messages import (
    PROTOCOL,
    Beat,
    Done,
    Goodbye,
    Message,
    MirrorOpened,
    NodeHello,
    OpenMirror,
    OpenNodeRun,
    RunOpened,
    TakePack,
    decode_message,
    encode_message,
)
from shoal.git.packs import PACK_SECONDS, hold_pack_file, list_known, repository_key, write_pack
from shoal.model.nodes import NodeAddress, NodeLoad, NodeOffer
from shoal.model.plan import Plan
from shoal.sessions.context import RunContext
from shoal.store.plans import Unrecordable, encode_model

GREET_SECONDS = 60.0
ASK_SECONDS = 120.0
OPEN_SECONDS = 600.0
LEASE_SECONDS = 20.0
"""How long each side may be silent until the other one takes it for lost; a node then stops its agents."""
BLOCK_BYTES = 2**18

OnNodeMessage = Callable[[Message, Channel | None], None]


@dataclass(slots=True)
class NodeConnection:
    """An open link to a node, and what it is known to have."""

    link: NodeLink
    offer: NodeOffer
    context: RunContext
    load: NodeLoad = field(default_factory=NodeLoad)
    commits: list[str] = field(default_factory=list)
    """The commits in its mirror, the newest first."""
    packed_bytes: int = 0
    """What was sent of the repository."""
    opened: RunOpened | None = None
    _bringing: asyncio.Lock = field(default_factory=asyncio.Lock)  # a later pack may build on the one before

    async def bring(self, commit: str) -> None:
        """Send what the node lacks of *commit*: all of it once, and later only what is new."""
        async with self._bringing:
            if commit in self.commits:
                return
            repository = self.context.repository
            known = await list_known(repository, self.commits)
            with hold_pack_file(self.context.paths.root) as pack:
                self.packed_bytes += await write_pack(repository, (commit,), known, pack)
                channel = self.link.open_channel()
                request = TakePack(id=self.link.next_request(), channel=channel.number, commit=commit)
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self.link.ask(request, Done, seconds=PACK_SECONDS))
                        group.create_task(_send(channel, pack))
                except BaseExceptionGroup as errors:
                    raise first_error(errors) from None
            self.commits.insert(0, commit)

    async def open_mirror(self) -> None:
        """Open the mirror of the repository there."""
        repository = self.context.repository
        request = OpenMirror(
            id=self.link.next_request(),
            key=repository_key(repository, platform.node()),
            object_format=repository.object_format,
            branch=repository.branch or "",
            settings=repository.settings,
        )
        self.commits = list((await self.link.ask(request, MirrorOpened, seconds=ASK_SECONDS)).commits)

    async def open_run(self, plan_text: str) -> None:
        """Open a run there, with a plan; raise `Refused` for one that the node cannot do."""
        context, channel = self.context, self.link.open_channel()
        who = context.repository.identity
        request = OpenNodeRun(
            id=self.link.next_request(),
            channel=channel.number,
            run=context.run,
            commit=context.base.commit,
            author=who.name,
            email=who.email,
            date=who.date,
            grace=context.grace,
        )
        try:
            async with asyncio.TaskGroup() as group:
                opening = group.create_task(self.link.ask(request, RunOpened, seconds=OPEN_SECONDS))
                group.create_task(_send_bytes(channel, plan_text.encode()))
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        self.opened = opening.result()


@contextlib.asynccontextmanager
async def open_connection(
    stream: NodeStream, node: NodeAddress, context: RunContext, *, lease: float = LEASE_SECONDS
) -> AsyncIterator[NodeConnection]:
    """Greet the node at *stream*, and speak the protocol with it until the block ends."""
    hello = await greet(stream, node, lease=lease)
    offer = hello.offer or NodeOffer(version=hello.version)
    role = LinkRole(is_coordinator=True, lease_seconds=lease)
    async with open_link(stream.reader, stream.writer, role) as link:
        connection = NodeConnection(link=link, offer=offer, context=context, load=offer.load)
        try:
            yield connection
        finally:
            link.post(Goodbye())


async def greet(stream: NodeStream, node: NodeAddress, *, lease: float = LEASE_SECONDS) -> NodeHello:
    """Exchange greetings; raise `NodeUnavailable` for what is no node, or speaks another version."""
    try:
        async with asyncio.timeout(GREET_SECONDS):
            await skip_banner(stream.reader)
            frame = await read_frame(stream.reader)
            message = None if frame is None or frame.kind is not FrameKind.MESSAGE else decode_message(frame.body)
            ours = NodeHello(protocol=PROTOCOL, version=__version__, node=node.name, lease_seconds=lease)
            stream.writer.write(encode_frame(FrameKind.MESSAGE, encode_message(ours)))
            await stream.writer.drain()
    except (ProtocolError, OSError, TimeoutError) as error:
        await asyncio.sleep(0)  # its last words may have come with its end
        why = stream.complaint() or str(error) or f"it did not answer within {GREET_SECONDS:g} s"
        remedy = "install Shoal there, so that `shoal` is on its PATH"
        raise NodeUnavailable(node.name, f"`shoal node` does not run there: {why}", remedy) from None
    if not isinstance(message, NodeHello):
        raise NodeUnavailable(node.name, "it does not speak the protocol of nodes", "install Shoal there again")
    if message.protocol != PROTOCOL:
        why = f"its Shoal {message.version} speaks version {message.protocol} of the protocol, and ours {PROTOCOL}"
        raise NodeUnavailable(node.name, why, f"install Shoal {__version__} there")
    return message


def encode_plan_for_nodes(plan: Plan) -> str:
    """Encode *plan* for other machines, without secrets; refuse one that only this program can run."""
    try:
        return encode_model(plan)
    except Unrecordable as error:
        raise BadInput(f"this run cannot use nodes: {error}; leave out `--on`") from None


def take_beat(connection: NodeConnection, message: Message) -> bool:
    """Note the load in a node's sign of life; say whether *message* was one."""
    if isinstance(message, Beat) and message.load is not None:
        connection.load = message.load
    return isinstance(message, Beat)


async def _send(channel: Channel, path: Path) -> None:
    with path.open("rb") as file:
        while content := file.read(BLOCK_BYTES):
            await channel.write(content)
    await channel.finish()


async def _send_bytes(channel: Channel, content: bytes) -> None:
    await channel.write(content)
    await channel.finish()
