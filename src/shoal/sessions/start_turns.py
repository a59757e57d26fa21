"""Turns to start: only a few sandboxes come up at once, because all that come up together come up slower.

A session takes its turn before it makes its private things: what one of those before it left untouched serves it then.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextvars import ContextVar
from weakref import WeakKeyDictionary

AT_ONCE = 2 * (os.cpu_count() or 1)
LONGEST_SECONDS = 30.0

# One line for each loop, whatever runs are on it: the cores are the same.
_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class StartTurn:
    """The right to start; it ends once, when the sandbox stands, and nobody has to wait for one that hangs."""

    def __init__(self, line: asyncio.Semaphore) -> None:
        self._line = line
        self._limit = asyncio.get_running_loop().call_later(LONGEST_SECONDS, self.end)
        self.is_over = False

    def end(self) -> None:
        """Let the next one start; a second time does nothing."""
        if not self.is_over:
            self.is_over = True
            self._limit.cancel()
            self._line.release()


_begun: ContextVar[StartTurn | None] = ContextVar("_begun", default=None)
"""The turn that this task has already."""


@contextlib.asynccontextmanager
async def taken_turn() -> AsyncIterator[StartTurn]:
    """Wait in line for a turn, or go on with the one that was begun; on leaving it is over in any case."""
    turn = _begun.get()
    if turn is None or turn.is_over:
        line = _lines.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
        await line.acquire()
        turn = StartTurn(line)
    try:
        yield turn
    finally:
        turn.end()


@contextlib.asynccontextmanager
async def begun_turn() -> AsyncIterator[None]:
    """Begin a turn now already, with what is made before the start; the first sandbox from here on goes on with it."""
    async with taken_turn() as turn:
        _begun.set(turn)
        yield
