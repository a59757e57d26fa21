"""What the patterns run, and how one of them is brought to its end: retried, limited, timed, judged."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from shoal.errors import Refused
from shoal.patterns.deadline import within
from shoal.patterns.how import How
from shoal.patterns.outcome import Cancelled, Err, Ok, Outcome
from shoal.patterns.retry import again
from shoal.patterns.source import Call

T = TypeVar("T")


async def ended(call: Call[T], how: How[T], index: int, started: Callable[[], None]) -> Outcome[T]:
    """Run *call* as *how* says and tell how it ended; only a cancellation from outside passes through."""
    attempt = partial(_once, call, how, started)
    try:
        async with within(how.seconds_left(), how.lateness):
            return Ok(await (attempt() if how.retry is None else again(attempt, how.retry)), index)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Cancelled(index)
    except Exception as error:
        return Err(error, index)


async def _once(call: Call[T], how: How[T], started: Callable[[], None]) -> T:
    async with how.slot():
        started()
        async with within(how.timeout, how.overtime):
            value = await call()
    if how.accept is not None and not how.accept(value):
        raise Refused(value)
    return value
