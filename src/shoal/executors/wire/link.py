"""A link: both directions of the node protocol, with answers to requests, channels, and a lease."""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from shoal.errors import Broken, ExitCode, ShoalError, Unavailable, first_error
from shoal.executors.carriers.kind import StreamWriter
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.frames import Frame, FrameKind, ProtocolError, encode_data, encode_frame, read_frame
from shoal.executors.wire.messages import (
    ANNOUNCING,
    REPLIES,
    Beat,
    Credit,
    Message,
    NodeRefusal,
    Reply,
    Request,
    Reset,
    decode_message,
    encode_message,
)

BEATS = 5
"""How often each side gives a sign of life in the time of a lease."""
MAX_CHANNELS = 2048
MAX_WAITING_BYTES = 8 * 2**20
"""What may wait to be sent; beyond it, senders wait."""
FINAL_SECONDS = 5.0

Answer = TypeVar("Answer", bound=Reply)


class LinkLost(Broken):
    """The other side is gone, or does not speak the protocol: what it did meanwhile is unknown."""


class RefusedByNode(Unavailable):
    """The other side refused a request."""

    def __init__(self, refusal: NodeRefusal) -> None:
        super().__init__(refusal.what, refusal.message, refusal.remedy)
        self.args = (refusal.message,)
        self.exit_code = ExitCode(refusal.code) if refusal.code in tuple(ExitCode) else ExitCode.BROKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRole:
    """Which side of the link this is: its channels have odd or even numbers, and *beat* makes its sign of life."""

    is_coordinator: bool
    lease_seconds: float
    beat: Callable[[], Beat] = Beat


class NodeLink:
    """Speaks the protocol on an open stream; made by `open_link`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: StreamWriter, role: LinkRole, group: asyncio.TaskGroup
    ) -> None:
        self.lost = asyncio.Event()
        self.why = ""
        """Why the link was lost."""
        self.bytes_out = 0
        self.bytes_in = 0
        self.heard_at = time.monotonic()
        self.on_message: Callable[[Message, Channel | None], None] = lambda message, channel: None
        """Called with each message that is no answer, and the channel that it opens."""
        self._reader = reader
        self._writer = writer
        self._role = role
        self._group = group
        self._numbers = itertools.count(1 if role.is_coordinator else 2, 2)
        self._requests = itertools.count(1)
        self._answers: dict[int, asyncio.Future[tuple[Reply, Channel | None]]] = {}
        self._channels: dict[int, Channel] = {}
        self._outbox: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._has_work = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do *work* for as long as the link is open; its errors are its own to report."""
        return self._group.create_task(work)

    def post(self, message: Message, *, is_droppable: bool = False) -> bool:
        """Send *message* without waiting; say no, and drop it, where too much waits and it *is_droppable*."""
        if self.lost.is_set() or (is_droppable and self._waiting_bytes > MAX_WAITING_BYTES):
            return False
        self._put(encode_frame(FrameKind.MESSAGE, encode_message(message)))
        return True

    async def send(self, message: Message) -> None:
        """Send *message* after what was sent before; wait for room. Raises `LinkLost`."""
        await self._wait_for_room()
        self._put(encode_frame(FrameKind.MESSAGE, encode_message(message)))

    async def ask(self, message: Request, kind: type[Answer], *, seconds: float) -> Answer:
        """Send a request and return its answer; raise `Refused`, `LinkLost` or TimeoutError."""
        answer, channel = await self.ask_for_channel(message, kind, seconds=seconds)
        if channel is not None:
            self.break_off(channel)
        return answer

    async def ask_for_channel(
        self, message: Request, kind: type[Answer], *, seconds: float
    ) -> tuple[Answer, Channel | None]:
        """Send a request and return its answer, with the channel that it opens."""
        waiter = self.request(message)
        try:
            async with asyncio.timeout(seconds):
                answer, channel = await waiter
        finally:
            self._answers.pop(message.id, None)
        if isinstance(answer, NodeRefusal):
            raise RefusedByNode(answer)
        if not isinstance(answer, kind):
            self.lose(f"it answered {type(message).__name__} with {type(answer).__name__}")
            raise LinkLost(self.why)
        return answer, channel

    def request(self, message: Request) -> "asyncio.Future[tuple[Reply, Channel | None]]":
        """Send a request at once; its answer is the result of what this returns, which fails with `LinkLost`."""
        waiter: asyncio.Future[tuple[Reply, Channel | None]] = asyncio.get_running_loop().create_future()
        if self.lost.is_set():
            waiter.set_exception(LinkLost(self.why))
        else:
            self._answers[message.id] = waiter
            self.post(message)
        return waiter

    def forget_request(self, number: int) -> None:
        """Expect no answer any more."""
        self._answers.pop(number, None)

    def next_request(self) -> int:
        """Return a number for a request."""
        return next(self._requests)

    def open_channel(self) -> Channel:
        """Open a channel, whose number the next message announces."""
        return self._add_channel(next(self._numbers))

    def break_off(self, channel: Channel) -> None:
        """Break *channel* off in both directions."""
        if self._channels.pop(channel.number, None) is not None:
            channel.fail("it was broken off")
            self.post(Reset(channel=channel.number))

    def lose(self, why: str) -> None:
        """Give the link up; every wait on it ends."""
        if self.lost.is_set():
            return
        self.why = why
        self.lost.set()
        for waiter in self._answers.values():
            if not waiter.done():
                waiter.set_exception(LinkLost(why))
        for channel in tuple(self._channels.values()):
            channel.fail(why)
        self._channels.clear()
        self._has_work.set()
        self._has_room.set()

    async def run(self) -> None:
        """Read, write and give signs of life until the link is lost."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in (self._read(), self._write(), self._beat())]
            await self.lost.wait()
            await asyncio.wait(tasks[1:2], timeout=FINAL_SECONDS)  # what was said last is still written
            for task in tasks:
                task.cancel()

    async def flush(self) -> None:
        """Wait until what was sent has been written, or the link is lost."""
        while self._outbox and not self.lost.is_set():
            self._has_room.clear()
            await self._has_room.wait()

    async def _read(self) -> None:
        try:
            while not self.lost.is_set():
                async with asyncio.timeout(self._role.lease_seconds):
                    frame = await read_frame(self._reader)
                if frame is None:
                    return self.lose("the stream has ended")
                self.heard_at = time.monotonic()
                self.bytes_in += len(frame.body)
                self._take(frame)
        except TimeoutError:
            self.lose(f"nothing whole was heard for {self._role.lease_seconds:g} s")
        except (ShoalError, OSError, ValueError) as error:
            self.lose(str(error) or type(error).__name__)

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.DATA:
            if (channel := self._channels.get(frame.channel)) is not None:  # otherwise it was broken off meanwhile
                channel.take(frame.content)
            return
        message = decode_message(frame.body)
        match message:
            case Beat(load=None):
                pass
            case Credit(channel=number, count=count):
                if number in self._channels:
                    self._channels[number].add_credit(count)
            case Reset(channel=number):
                if (channel := self._channels.pop(number, None)) is not None:
                    channel.fail("the other side broke it off")
            case _:
                self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        channel = self._accept_channel(message.channel) if isinstance(message, ANNOUNCING) else None
        if not isinstance(message, REPLIES):
            self.on_message(message, channel)
            return
        waiter = self._answers.pop(message.re, None)
        if waiter is not None and not waiter.done():
            waiter.set_result((message, channel))
        elif channel is not None:  # nobody waits any more
            self.break_off(channel)

    def _accept_channel(self, number: int) -> Channel:
        if number in self._channels or number % 2 == self._role.is_coordinator or not 0 < number < 2**32:
            raise ProtocolError(f"{number} cannot be the number of a new channel")
        return self._add_channel(number)

    def _add_channel(self, number: int) -> Channel:
        if len(self._channels) >= MAX_CHANNELS:
            raise ProtocolError(f"more than {MAX_CHANNELS} channels are open at once")
        channel = Channel(number, self._send_data, self._grant, self._forget)
        self._channels[number] = channel
        return channel

    def _forget(self, number: int) -> None:
        self._channels.pop(number, None)

    async def _send_data(self, channel: int, content: bytes) -> None:
        await self._wait_for_room()
        self._put(encode_data(channel, content))

    def _grant(self, channel: int, count: int) -> None:
        self.post(Credit(channel=channel, count=count))

    async def _wait_for_room(self) -> None:
        while self._waiting_bytes > MAX_WAITING_BYTES and not self.lost.is_set():
            self._has_room.clear()
            await self._has_room.wait()
        if self.lost.is_set():
            raise LinkLost(self.why)

    def _put(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self._waiting_bytes += len(frame)
        self._has_work.set()

    async def _write(self) -> None:
        try:
            while True:
                while self._outbox:
                    frame = self._outbox[0]
                    self._writer.write(frame)
                    await self._writer.drain()
                    self._outbox.popleft()
                    self._waiting_bytes -= len(frame)
                    self.bytes_out += len(frame)
                    self._has_room.set()
                if self.lost.is_set():
                    return
                self._has_work.clear()
                await self._has_work.wait()
        except OSError as error:
            self.lose(error.strerror or str(error) or "it cannot be written to")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._role.lease_seconds / BEATS)
            self.post(self._role.beat())


@contextlib.asynccontextmanager
async def open_link(reader: asyncio.StreamReader, writer: StreamWriter, role: LinkRole) -> AsyncIterator[NodeLink]:
    """Speak the protocol on a stream until the block ends; the tasks that it started are cancelled then."""
    error: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            link = NodeLink(reader, writer, role, group)
            running = group.create_task(link.run())
            try:
                yield link
            except BaseException as raised:  # passed around the task group, which would wrap it
                error = raised
            link.lose("it was closed")
            await asyncio.wait((running,))
            raise _End  # noqa: TRY301 - which cancels the other tasks
    except* _End:
        pass
    except* Exception as errors:
        error = first_error(errors)
    if error is not None:
        raise error


class _End(Exception):
    """Cancels the tasks of a link that is closed."""
