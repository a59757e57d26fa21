"""Read pipes in small chunks, no faster than a given rate."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

PIPE = 64 * 1024  # what a pipe holds by default: one read empties it
SLICE = 0.02
TURN = 0.002  # of a slice, what one stream's sink may take: eight floods then leave the loop its half
# `yes` makes 64 KiB into 32,768 lines: whole pipes of it held the loop for 0.9 s. No less than what its sink takes for
# a sip (`sessions/output_log.py`), or who is read in small bites would be held back for that.
SMALLEST = 1024
LARGEST_PIPE = 2**20  # what an ordinary user may make of one


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """Where a tap's bytes go, and its end; *pour* may return for how many seconds to pause."""

    pour: Callable[[bytes], float | None]
    closed: Callable[[], None]
    failed: Callable[[Exception], None]


class PipeReader:
    """Read a pipe while it is readable; above its rate it pauses, so that the writer blocks, not the loop."""

    def __init__(self, fd: int, outlet: OutputTarget, rate_bytes: int) -> None:
        self._fd = fd
        self._outlet = outlet
        self._loop = asyncio.get_running_loop()
        self._allowance = max(1, int(rate_bytes * SLICE))
        self._slice_ends = 0.0
        self._left = 0
        self._time_left = 0.0
        self._bite = 8 * SMALLEST
        self._unwanted = 0.0
        self._rest: asyncio.TimerHandle | None = None
        self.touched = 0.0
        self.closed = asyncio.Event()

    def open(self) -> None:
        """Start or resume reading."""
        self._rest = None
        self._slice_ends = 0.0  # a timer may come a clock tick early, and a read of 0 bytes would look like the end
        self._loop.add_reader(self._fd, self._draw)

    def wake(self) -> None:
        """End a pause: the writer is gone, and the rest is needed now."""
        if self._rest is not None and not self.closed.is_set():
            self._rest.cancel()
            self.open()

    def drain(self) -> None:
        """Read what the pipe still holds and close it, even if its other end is still open."""
        left = LARGEST_PIPE
        while left > 0 and not self.closed.is_set() and (taken := self._read(min(PIPE, left))):
            left -= taken
        self.close()

    def close(self) -> None:
        """Stop reading and close the descriptor; idempotent."""
        if self.closed.is_set():
            return
        self.closed.set()
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._outlet.closed()

    def _draw(self) -> None:
        now = self._loop.time()
        if now >= self._slice_ends:
            self._slice_ends, self._left, self._time_left = now + SLICE, self._allowance, TURN
        taken = self._read(min(self._bite, self._left))
        if taken:
            self.touched = self._loop.time()
            self._left -= taken
            self._spend(self.touched - now)
        if not self.closed.is_set():
            self._pause(now)

    def _pause(self, now: float) -> None:
        """Pause until the next slice when this slice's share is spent, or as long as the sink asks."""
        is_spent = min(self._left, self._time_left) <= 0
        until = max(self._slice_ends if is_spent else 0.0, now + self._unwanted if self._unwanted else 0.0)
        self._unwanted = 0.0
        if until > 0:
            self._loop.remove_reader(self._fd)
            self._rest = self._loop.call_at(until, self.open)

    def _spend(self, seconds: float) -> None:
        self._time_left -= seconds
        if seconds > TURN / 2:
            self._bite = max(SMALLEST, self._bite // 2)
        elif seconds < TURN / 4:
            self._bite = min(PIPE, self._bite * 2)

    def _read(self, most: int) -> int:
        try:
            chunk = os.read(self._fd, most)
        except BlockingIOError:
            return 0
        if chunk:
            self._pour(chunk)
        else:
            self.close()
        return len(chunk)

    def _pour(self, chunk: bytes) -> None:
        try:
            self._unwanted = self._outlet.pour(chunk) or 0.0
        except Exception as error:  # a raise here would end in the loop's log, and the bytes in nothing
            self._outlet.failed(error)


class PipeWriter:
    """Write whole messages into a pipe; raise `BrokenPipeError` if the reader is gone."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()  # or two messages would mix where the pipe is full
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False

    async def write(self, message: bytes) -> None:
        """Write all of *message*; wait while the child does not read."""
        async with self._turn:
            rest = memoryview(message)
            while rest:
                rest = rest[await self._some(rest[:PIPE]) :]

    def close(self) -> None:
        """Close the child's input; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._wake()

    async def _some(self, piece: memoryview) -> int:
        if self._is_closed:
            raise BrokenPipeError("the input of this process has been closed")
        try:
            return os.write(self._fd, piece)
        except BlockingIOError:
            await self._writable()
            return 0

    async def _writable(self) -> None:
        self._room = self._loop.create_future()
        self._loop.add_writer(self._fd, self._wake)
        try:
            await self._room
        finally:
            self._room = None
            if not self._is_closed:
                self._loop.remove_writer(self._fd)

    def _wake(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
