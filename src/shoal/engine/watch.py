"""Watching a running agent until the first thing that ends it."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from shoal.engine.behind import Box
from shoal.engine.bounds import Bounds, passed
from shoal.engine.words import Words
from shoal.errors import first_of
from shoal.proc import Exit


class Ending(Enum):
    """What made the agent's process end."""

    BY_ITSELF = "by itself"
    TIME = "time"
    STOP = "stop"
    LIMIT = "limit"
    DONE = "done"
    """It told its own end and lingered, and was ended."""
    STALL = "stall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an agent ended, and what it had said."""

    ending: Ending
    exit: Exit
    words: Words
    limit: str | None = None
    failure: str | None = None
    """Why it could not finish, where there is a better word than its exit code."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """What it spent on its model, by the names of a report."""
    client_session: str | None = None
    """The client's own name for the conversation."""
    is_judged: bool = False
    """Whether *failure* is the whole verdict, whatever its exit code was."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What ended the agent's process, how, and which limit it had passed."""

    ending: Ending
    exit: Exit
    limit: str | None = None


async def watched(
    box: Box,
    bounds: Bounds,
    seconds: float | None,
    stop: asyncio.Event,
    grace: float,
    signs: Mapping[Ending, Awaitable[object]] = MappingProxyType({}),
) -> Watched:
    """Wait for the first of: the agent ends, its time is over, it is told to stop, it passes a limit, one of *signs*.

    What the signs wait for must be awaited nowhere else: it is cancelled here.
    """
    try:
        async with asyncio.TaskGroup() as group:
            done = group.create_task(box.wait())
            told = group.create_task(stop.wait())
            shown = {ending: group.create_task(_seen(sign)) for ending, sign in signs.items()}
            every: list[asyncio.Task[Any]] = [done, told, *shown.values()]
            began = time.monotonic()
            # Most of what is short has ended before its first look is due, and is never looked at.
            first = bounds.pace.seconds if seconds is None else min(seconds, bounds.pace.seconds)
            early, _ = await asyncio.wait(every, timeout=first, return_when=asyncio.FIRST_COMPLETED)
            over = None
            if not early and first != seconds:
                every.append(over := group.create_task(passed(bounds, began)))
                rest = None if seconds is None else seconds - first
                await asyncio.wait(every, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            sign = next((ending for ending, task in shown.items() if task.done()), None)
            result = await _ended(box, done, told, over, grace, sign)
            for task in every:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return result


async def _seen(sign: Awaitable[object]) -> None:
    await sign


async def _ended(
    box: Box,
    done: asyncio.Task[Exit],
    told: asyncio.Task[bool],
    over: asyncio.Task[str] | None,
    grace: float,
    sign: Ending | None,
) -> Watched:
    if done.done():
        return Watched(Ending.BY_ITSELF, await done)
    done.cancel()  # who is ended before its wall stood was ended: that is not a broken wall
    if over is not None and over.done():
        # Who is over a limit gets no grace: it would only spend more.
        return Watched(Ending.LIMIT, await box.end(0), await over)
    ending = Ending.STOP if told.done() else sign or Ending.TIME
    return Watched(ending, await box.end(grace))
