"""A channel: bytes of one thing, such as a pack, beside everything else on a link, with credit in each direction."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from shoal.executors.wire.frames import DATA_BYTES, ProtocolError

WINDOW_BYTES = 512 * 2**10
"""How much a sender may send before the receiver has used any of it."""


class ChannelBroken(ConnectionResetError):
    """The other side broke a channel off, or the link is lost."""


class Channel:
    """One channel of a link; each direction ends on its own."""

    def __init__(
        self,
        number: int,
        send: Callable[[int, bytes], Awaitable[None]],
        grant: Callable[[int, int], None],
        forget: Callable[[int], None],
    ) -> None:
        self.number = number
        self._send = send
        self._grant = grant
        self._forget = forget
        self._credit = WINDOW_BYTES
        self._more_credit = asyncio.Event()
        self._received: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._used_bytes = 0
        self._more = asyncio.Event()
        self._has_ended = False
        self._is_finished = False
        self._broken: str | None = None

    async def read(self) -> bytes:
        """Return the next bytes; none at the end. Raises `ChannelBroken`."""
        while not self._received:
            if self._broken is not None:
                raise ChannelBroken(self._broken)
            if self._has_ended:
                return b""
            self._more.clear()
            await self._more.wait()
        content = self._received.popleft()
        self._waiting_bytes -= len(content)
        self._used_bytes += len(content)
        if self._used_bytes >= WINDOW_BYTES // 2 and not self._has_ended:
            self._grant(self.number, self._used_bytes)
            self._used_bytes = 0
        return content

    async def read_all(self, most: int) -> bytes:
        """Return everything until the end; raise `ProtocolError` beyond *most* bytes."""
        parts, size = [], 0
        while content := await self.read():
            size += len(content)
            if size > most:
                raise ProtocolError(f"more than {most} bytes came on a channel that may have no more")
            parts.append(content)
        return b"".join(parts)

    async def write(self, content: bytes) -> None:
        """Send *content*; wait while the receiver has not used what was sent before."""
        rest = memoryview(content)
        while rest:
            while self._credit <= 0 and self._broken is None:
                self._more_credit.clear()
                await self._more_credit.wait()
            if self._broken is not None:
                raise ChannelBroken(self._broken)
            piece = rest[: min(DATA_BYTES, self._credit)]
            self._credit -= len(piece)
            await self._send(self.number, bytes(piece))
            rest = rest[len(piece) :]

    async def finish(self) -> None:
        """Say that nothing more follows in this direction."""
        if not self._is_finished and self._broken is None:
            self._is_finished = True
            await self._send(self.number, b"")
            self._forget_if_done()

    def take(self, content: bytes) -> None:
        """Take what arrived; raise `ProtocolError` for more than was granted."""
        if self._has_ended:
            raise ProtocolError("data came after the end of its channel")
        if not content:
            self._has_ended = True
            self._forget_if_done()
        else:
            self._waiting_bytes += len(content)
            if self._waiting_bytes + self._used_bytes > WINDOW_BYTES:
                raise ProtocolError("a channel carries more than it was allowed to")
            self._received.append(content)
        self._more.set()

    def add_credit(self, count: int) -> None:
        """Let more be sent."""
        self._credit = min(WINDOW_BYTES, self._credit + max(0, count))
        self._more_credit.set()

    def fail(self, why: str) -> None:
        """Break it off: what has arrived can still be read."""
        self._broken = self._broken or why
        self._more.set()
        self._more_credit.set()

    def _forget_if_done(self) -> None:
        if self._is_finished and self._has_ended:
            self._forget(self.number)
