"""Turns to start: only a few boxes come up at once, because all that come up together come up slower."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

AT_ONCE = 2 * (os.cpu_count() or 1)
LONGEST_SECONDS = 30.0

# One line for each loop, whatever runs are on it: the cores are the same.
_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class Turn:
    """The right to start; it ends once, when the box stands, and nobody has to wait for one that hangs."""

    def __init__(self, line: asyncio.Semaphore) -> None:
        self._line = line
        self._limit = asyncio.get_running_loop().call_later(LONGEST_SECONDS, self.end)
        self._is_over = False

    def end(self) -> None:
        """Let the next one start; a second time does nothing."""
        if not self._is_over:
            self._is_over = True
            self._limit.cancel()
            self._line.release()


@contextlib.asynccontextmanager
async def taken_turn() -> AsyncIterator[Turn]:
    """Wait in line for a turn; on leaving it is over in any case."""
    line = _lines.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
    await line.acquire()
    turn = Turn(line)
    try:
        yield turn
    finally:
        turn.end()
