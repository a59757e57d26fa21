"""The node protocol on the wire: whatever arrives, both sides end the link or go on, and never wait or grow for ever."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.executors.wire.channel import WINDOW_BYTES, ChannelBroken
from shoal.executors.wire.frames import (
    DATA_BYTES,
    GREETING,
    MAX_MESSAGE_BYTES,
    Frame,
    FrameKind,
    ProtocolError,
    encode_data,
    encode_frame,
    read_frame,
    skip_banner,
)
from shoal.executors.wire.link import LinkLost, LinkRole, NodeLink, open_link
from shoal.executors.wire.messages import (
    KINDS,
    Beat,
    Done,
    ListWork,
    Message,
    NodeHello,
    SessionHappened,
    TakePack,
    TellAgent,
    WorkListed,
    decode_message,
    encode_message,
)
from shoal.model.nodes import NodeLoad, NodeOffer


def reading(data: bytes, *, is_over: bool = True) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if is_over:
        reader.feed_eof()
    return reader


async def read_everything(data: bytes) -> list[Frame]:
    reader, frames = reading(data), []
    async with asyncio.timeout(10):
        while (frame := await read_frame(reader)) is not None:
            frames.append(frame)
    return frames


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_is_frames(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        frames = asyncio.run(read_everything(data))
        assert b"".join(encode_frame(frame.kind, frame.body) for frame in frames) == data


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.data())
def test_a_stream_that_ends_within_a_frame_is_refused(bodies: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(encode_data(3, body) for body in bodies)
    cut = data.draw(st.integers(0, len(whole)))
    ends = {sum(len(encode_data(3, body)) for body in bodies[:count]) for count in range(len(bodies) + 1)}

    if cut in ends:
        assert len(asyncio.run(read_everything(whole[:cut]))) <= len(bodies)
    else:
        with pytest.raises(ProtocolError):
            asyncio.run(read_everything(whole[:cut]))


@given(st.binary(max_size=200))
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_message(body)


@given(
    st.sampled_from(sorted(KINDS)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    ),
)
def test_a_message_of_the_right_name_and_the_wrong_fields_is_refused(name: str, fields: object) -> None:
    import json

    with contextlib.suppress(ProtocolError):
        assert isinstance(decode_message(json.dumps([name, fields]).encode()), KINDS[name])


MESSAGES = (
    Beat(load=NodeLoad(running=2, cpu=0.5)),
    NodeHello(protocol=1, version="1", offer=NodeOffer(version="1", missing={"landlock": "no"})),
    TellAgent(session="s", fence="f", text="a\ud800\0ü", by="ada", request="r"),
    WorkListed(re=3),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_wire(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("kind", FrameKind)
async def test_a_length_that_is_too_large_allocates_nothing(kind: FrameKind) -> None:
    header = kind.value + (kind.max_bytes + 1).to_bytes(3, "big")

    with pytest.raises(ProtocolError, match="claims"):
        await read_frame(reading(header, is_over=False))


def test_no_message_is_sent_that_would_be_refused() -> None:
    with pytest.raises(ProtocolError):
        encode_frame(FrameKind.MESSAGE, b"x" * (MAX_MESSAGE_BYTES + 1))


async def test_what_a_login_prints_before_the_greeting_is_skipped() -> None:
    assert await skip_banner(reading(b"Welcome!\nmotd\n" + GREETING + b"rest")) == b"Welcome!\nmotd\n"
    with pytest.raises(ProtocolError, match="something else"):
        await skip_banner(reading(b"x" * 100_000))
    with pytest.raises(ProtocolError, match="ended before"):
        await skip_banner(reading(b"command not found\n"))


class Wire:
    """A stream writer that feeds a reader, and never reads faster than it is read."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.reader = reader

    def write(self, data: bytes, /) -> None:
        self.reader.feed_data(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        self.reader.feed_eof()


@contextlib.asynccontextmanager
async def linked(lease: float = 30.0) -> AsyncIterator[tuple[NodeLink, NodeLink]]:
    """Open both sides of a link."""
    there, here = asyncio.StreamReader(), asyncio.StreamReader()
    async with (
        asyncio.timeout(60),
        open_link(here, Wire(there), LinkRole(is_coordinator=True, lease_seconds=lease)) as coordinator,
        open_link(there, Wire(here), LinkRole(is_coordinator=False, lease_seconds=lease)) as node,
    ):
        yield coordinator, node


@contextlib.asynccontextmanager
async def spoken_to(lease: float = 30.0) -> AsyncIterator[tuple[NodeLink, asyncio.StreamReader]]:
    """Open the coordinator's side; the other side is whoever feeds the reader."""
    incoming = asyncio.StreamReader()
    role = LinkRole(is_coordinator=True, lease_seconds=lease)
    async with asyncio.timeout(60), open_link(incoming, Wire(asyncio.StreamReader()), role) as link:
        yield link, incoming


def said(message: Message) -> bytes:
    return encode_frame(FrameKind.MESSAGE, encode_message(message))


async def test_requests_get_their_own_answers() -> None:
    async with linked() as (coordinator, node):
        waiting: list[ListWork] = []

        def answer_in_reverse(message: Message, _channel: object) -> None:
            assert isinstance(message, ListWork)
            waiting.append(message)
            if len(waiting) == 2:
                for asked in reversed(waiting):
                    node.post(WorkListed(re=asked.id))

        node.on_message = answer_in_reverse
        async with asyncio.TaskGroup() as group:
            requests = [ListWork(id=coordinator.next_request()) for _ in range(2)]
            tasks = [group.create_task(coordinator.ask(asked, WorkListed, seconds=10)) for asked in requests]

    assert [task.result().re for task in tasks] == [asked.id for asked in requests]


async def test_a_channel_carries_any_bytes_and_its_sender_waits_for_the_receiver() -> None:
    content = bytes(range(256)) * 20_000
    async with linked() as (coordinator, node):
        received = asyncio.get_running_loop().create_future()
        node.on_message = lambda message, channel: received.set_result(channel)
        channel = coordinator.open_channel()
        coordinator.post(TakePack(id=1, channel=channel.number, commit="c"))
        theirs = await received
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(channel.write(content))
            for _ in range(200):
                await asyncio.sleep(0)
            assert not sending.done()
            assert theirs._waiting_bytes <= WINDOW_BYTES
            group.create_task(_finish_after(sending, channel))
            assert await theirs.read_all(len(content)) == content


async def _finish_after(sending: asyncio.Task[None], channel: object) -> None:
    await sending
    await channel.finish()  # type: ignore[attr-defined]


ATTACKS = {
    "a data frame beyond its credit": said(TakePack(id=1, channel=2, commit="c"))
    + b"".join(encode_data(2, b"x" * DATA_BYTES) for _ in range(WINDOW_BYTES // DATA_BYTES + 1)),
    "a channel opened twice": said(TakePack(id=1, channel=2, commit="c")) * 2,
    "a channel with a number of ours": said(TakePack(id=1, channel=3, commit="c")),
    "a channel that cannot be": said(TakePack(id=1, channel=-2, commit="c")),
    "thousands of channels": b"".join(said(TakePack(id=1, channel=number, commit="c")) for number in range(2, 6000, 2)),
    "data after the end of its channel": said(TakePack(id=1, channel=2, commit="c"))
    + encode_data(2, b"")
    + encode_data(2, b"more"),
    "a message that is none": encode_frame(FrameKind.MESSAGE, b'["Gift", {}]'),
    "nested for ever": encode_frame(FrameKind.MESSAGE, b"[" * 100_000),
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "the end": b"",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_what_breaks_the_protocol_ends_the_link_and_every_wait_on_it(attack: bytes) -> None:
    async with spoken_to() as (link, incoming):
        channel = link.open_channel()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(_fails_with(LinkLost, link.ask(ListWork(id=1), WorkListed, seconds=30)))
            reading_ = group.create_task(_fails_with(ChannelBroken, channel.read()))
            incoming.feed_data(attack)
            if not attack:
                incoming.feed_eof()
            await link.lost.wait()

        assert asking.result()
        assert reading_.result()
        assert link.why


async def _fails_with(kind: type[Exception], work: object) -> bool:
    try:
        await work  # type: ignore[misc]
    except kind:
        return True
    return False


async def test_answers_that_nobody_asked_for_and_data_of_no_channel_are_ignored() -> None:
    """Replayed frames change nothing."""
    heard: list[Message] = []
    async with spoken_to() as (link, incoming):
        link.on_message = lambda message, channel: heard.append(message)
        incoming.feed_data(said(Done(re=99)) * 3 + encode_data(7, b"late") + encode_data(44, b""))
        event = SessionHappened(session="s", fence="f", kind="Output", body="{}")
        incoming.feed_data(said(event))
        while not heard:
            await asyncio.sleep(0)

        assert heard == [event]
        assert not link.lost.is_set()


async def test_a_frame_that_comes_byte_by_byte_ends_the_lease() -> None:
    async with spoken_to(lease=0.3) as (link, incoming):
        async with asyncio.TaskGroup() as group:
            dripping = group.create_task(_drip(incoming, said(Beat())))
            await link.lost.wait()
            dripping.cancel()

        assert "nothing whole was heard" in link.why


async def _drip(incoming: asyncio.StreamReader, data: bytes) -> None:
    for byte in data:
        incoming.feed_data(bytes([byte]))
        await asyncio.sleep(0.1)


async def test_signs_of_life_keep_a_lease() -> None:
    async with linked(lease=0.5) as (coordinator, node):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                await coordinator.lost.wait()

        assert not coordinator.lost.is_set()
        assert not node.lost.is_set()
