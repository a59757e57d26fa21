"""The process of a node: it greets, opens a mirror and a run in it, and runs sessions until its lease ends."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from shoal import __version__
from shoal.errors import ShoalError
from shoal.executors.carriers.kind import StreamWriter
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.frames import GREETING, FrameKind, ProtocolError, encode_frame, read_frame
from shoal.executors.wire.link import LinkRole, NodeLink, open_link
from shoal.executors.wire.messages import (
    PROTOCOL,
    Beat,
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
from shoal.nodes.mirror import Mirror, hold_mirror
from shoal.nodes.node_run import NodeRun, open_node_run, receive_pack, refuse
from shoal.nodes.offer import make_offer, measure_load
from shoal.store.known_repositories import find_user_folder

HELLO_SECONDS = 30.0
LEAST_LEASE, MOST_LEASE = 1.0, 3600.0
STREAM_BYTES = 2**20


async def serve_stdio(environ: Mapping[str, str]) -> None:
    """Be a node for the coordinator at standard input and output, until it is gone."""
    async with _open_stdio() as (reader, writer):
        await serve_node(reader, writer, environ)


async def serve_node(reader: asyncio.StreamReader, writer: StreamWriter, environ: Mapping[str, str]) -> None:
    """Be a node on an open stream; raise `ProtocolError` for somebody who is no coordinator."""
    state = find_user_folder(environ, "nodes") or Path("/")
    writer.write(GREETING)
    offer = await make_offer(environ, state)
    hello = NodeHello(protocol=PROTOCOL, version=__version__, offer=offer)
    writer.write(encode_frame(FrameKind.MESSAGE, encode_message(hello)))
    await writer.drain()
    asked = await _read_hello(reader)
    node = NodeService(environ)
    lease = min(MOST_LEASE, max(LEAST_LEASE, asked.lease_seconds))
    role = LinkRole(
        is_coordinator=False, lease_seconds=lease, beat=lambda: Beat(load=measure_load(node.running, state))
    )
    async with open_link(reader, writer, role) as link:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, link.lose, f"the node was ended by {number.name}")
        await node.serve(link)


async def _read_hello(reader: asyncio.StreamReader) -> NodeHello:
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            frame = await read_frame(reader)
    except TimeoutError:
        raise ProtocolError(f"no coordinator said hello within {HELLO_SECONDS:g} s") from None
    message = None if frame is None or frame.kind is not FrameKind.MESSAGE else decode_message(frame.body)
    if not isinstance(message, NodeHello):
        raise ProtocolError("`shoal node --stdio` is started by `shoal run --on`; what came is not its protocol")
    if message.protocol != PROTOCOL:
        why = f"the coordinator speaks version {message.protocol} of the node protocol, and this node {PROTOCOL}"
        raise ProtocolError(f"{why}; install the same version of Shoal on both")
    return message


class NodeService:
    """What one coordinator uses of this machine: a mirror, and a run in it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._mirror: Mirror | None = None
        self._run: NodeRun | None = None
        self._opening: asyncio.Queue[tuple[OpenMirror | OpenNodeRun, Channel | None]] = asyncio.Queue()

    @property
    def running(self) -> int:
        """How many sessions run."""
        return 0 if self._run is None else self._run.running

    async def serve(self, link: NodeLink) -> None:
        """Do what the coordinator asks until the link is lost: first a mirror, then a run, then sessions."""
        link.on_message = lambda message, channel: self._take(link, message, channel)
        async with contextlib.AsyncExitStack() as held:
            while (asked := await self._next(link)) is not None:
                request, channel = asked
                try:
                    if isinstance(request, OpenMirror):
                        await self._open_mirror(link, request, held)
                    elif channel is not None:
                        await self._open_run(link, request, channel, held)
                except (ShoalError, OSError, TimeoutError) as error:
                    refuse(link, request.id, error)
            if self._run is not None:
                await self._run.stop()

    async def _next(self, link: NodeLink) -> tuple[OpenMirror | OpenNodeRun, Channel | None] | None:
        async with asyncio.TaskGroup() as group:
            lost = group.create_task(link.lost.wait())
            asked = group.create_task(self._opening.get())
            await asyncio.wait((lost, asked), return_when=asyncio.FIRST_COMPLETED)
            lost.cancel()
            asked.cancel()
        return None if link.lost.is_set() else asked.result()

    def _take(self, link: NodeLink, message: Message, channel: Channel | None) -> None:
        match message:
            case Goodbye():
                link.lose("the coordinator has ended")
            case OpenMirror() | OpenNodeRun():
                self._opening.put_nowait((message, channel))
            case TakePack() if self._mirror is not None and channel is not None:
                link.start(receive_pack(link, self._mirror, message, channel))
            case _ if self._run is not None:
                self._run.take(message, channel)
            case _:
                link.lose(f"{type(message).__name__} came before there was a run")

    async def _open_mirror(self, link: NodeLink, request: OpenMirror, held: contextlib.AsyncExitStack) -> None:
        if self._mirror is None:
            self._mirror = await held.enter_async_context(hold_mirror(request, self._environ))
        link.post(MirrorOpened(re=request.id, commits=tuple(await self._mirror.list_commits())))

    async def _open_run(
        self, link: NodeLink, request: OpenNodeRun, channel: Channel, held: contextlib.AsyncExitStack
    ) -> None:
        if self._mirror is None or self._run is not None:
            raise ProtocolError("a node opens one run, in a mirror")
        opening = open_node_run(link, self._mirror, request, channel, self._environ)
        self._run = await held.enter_async_context(opening)
        context = self._run.context
        opened = RunOpened(
            re=request.id, sandbox=context.sandbox.name, workspace=context.kind.name, limits=context.enforcer.name
        )
        link.post(opened)


@contextlib.asynccontextmanager
async def _open_stdio() -> AsyncIterator[tuple[asyncio.StreamReader, StreamWriter]]:
    """Take over standard input and output: whatever else prints here must not end up in the protocol."""
    given, taken = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=STREAM_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    with os.fdopen(given, "rb") as source, os.fdopen(taken, "wb") as sink:
        incoming, _ = await loop.connect_read_pipe(lambda: protocol, source)
        outgoing, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sink)
        writer = asyncio.StreamWriter(outgoing, flow, reader, loop)
        try:
            yield reader, writer
        finally:
            outgoing.close()
            incoming.close()
