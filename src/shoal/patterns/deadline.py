"""Time limits that really end what they limit."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

from shoal.errors import TimedOut

T = TypeVar("T")


class within:
    """Cancel the block after *seconds*, and raise what *late* makes when it has ended; `None` is for ever."""

    def __init__(self, seconds: float | None, late: Callable[[], TimedOut]) -> None:
        self._clock = asyncio.timeout(seconds)
        self._late = late

    async def __aenter__(self) -> None:
        await self._clock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._clock.__aexit__(kind, error, trace)
        except TimeoutError as passed:  # only the clock's own: one of the block is not raised by its exit
            raise self._late() from passed


async def timeout(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Run *call* for at most *seconds*; it has been cancelled and has ended when `TimedOut` is raised."""
    async with within(seconds, lambda: TimedOut("the timeout", seconds)):
        return await call()
