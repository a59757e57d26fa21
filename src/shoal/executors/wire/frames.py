"""Frames: a kind and a length in four bytes, then the body; both sides survive whatever else arrives."""

import asyncio
from dataclasses import dataclass
from enum import Enum

from shoal.errors import Broken

GREETING = b"\0shoal-node\n"
"""What a node writes first: a login shell may have printed something before it."""
MAX_BANNER_BYTES = 64 * 2**10
HEADER_BYTES = 4
CHANNEL_BYTES = 4
DATA_BYTES = 64 * 2**10
"""How much of a channel one frame carries, so that nothing else waits for long."""
MAX_MESSAGE_BYTES = 4 * 2**20


class ProtocolError(Broken):
    """The other side does not speak the protocol; nothing more of it is read."""


class FrameKind(Enum):
    """What a frame carries, by its first byte."""

    MESSAGE = b"J"
    DATA = b"D"

    @property
    def max_bytes(self) -> int:
        """The largest body."""
        return MAX_MESSAGE_BYTES if self is FrameKind.MESSAGE else DATA_BYTES + CHANNEL_BYTES


KINDS = {kind.value: kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as received."""

    kind: FrameKind
    body: bytes

    @property
    def channel(self) -> int:
        """The channel of its data."""
        return int.from_bytes(self.body[:CHANNEL_BYTES], "big")

    @property
    def content(self) -> bytes:
        """The data; none ends the channel in this direction."""
        return self.body[CHANNEL_BYTES:]


def encode_frame(kind: FrameKind, body: bytes) -> bytes:
    """Encode a frame; raise `ProtocolError` for a body that the other side would refuse."""
    if len(body) > kind.max_bytes:
        raise ProtocolError(f"a frame of {len(body)} bytes is larger than the node protocol allows")
    return kind.value + len(body).to_bytes(HEADER_BYTES - 1, "big") + body


def encode_data(channel: int, content: bytes) -> bytes:
    """Encode a frame with data of *channel*."""
    return encode_frame(FrameKind.DATA, channel.to_bytes(CHANNEL_BYTES, "big") + content)


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Read the next frame; `None` at the end of the stream, `ProtocolError` for what is no frame.

    Nothing is allocated for a length that is too large. The caller limits how long a frame may take.
    """
    header = b""
    try:
        header = await reader.readexactly(HEADER_BYTES)
        kind, size = KINDS.get(header[:1]), int.from_bytes(header[1:], "big")
        if kind is None:
            raise ProtocolError(f"{header!r} begins no frame of the node protocol")
        if size > kind.max_bytes or (kind is FrameKind.DATA and size < CHANNEL_BYTES):
            raise ProtocolError(f"a frame claims to have {size} bytes, which none may have")
        return Frame(kind, await reader.readexactly(size))
    except asyncio.IncompleteReadError as error:
        if header or error.partial:
            raise ProtocolError("the stream ended in the middle of a frame") from None
        return None


async def skip_banner(reader: asyncio.StreamReader) -> bytes:
    """Read up to the greeting of a node, and return what was printed before it; raise `ProtocolError` without it."""
    found = b""
    while not found.endswith(GREETING):
        byte = await reader.read(1)
        if not byte:
            raise ProtocolError("it ended before it said that it is a node of Shoal")
        found += byte
        if len(found) > MAX_BANNER_BYTES:
            raise ProtocolError("it printed something else than the node protocol")
    return found.removesuffix(GREETING)
