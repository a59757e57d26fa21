"""The writing end of a child's standard input: what is said to it while it runs, no faster than it reads."""

import asyncio
import os

PIPE = 64 * 1024


class Feed:
    """Write whole messages into a pipe, one after the other; a reader that has gone is `BrokenPipeError`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()  # or two messages would mix where the pipe is full
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False

    async def write(self, message: bytes) -> None:
        """Write all of *message*; while the child does not read, this waits."""
        async with self._turn:
            rest = memoryview(message)
            while rest:
                rest = rest[await self._some(rest[:PIPE]) :]

    def close(self) -> None:
        """Let the child read the end of its input; a second time does nothing."""
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
