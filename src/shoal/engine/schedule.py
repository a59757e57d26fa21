"""Work that waits for other work: each piece starts the moment its own needs have ended, and never earlier."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from shoal.errors import first_of

Ended = TypeVar("Ended")

Perform = Callable[[str, Mapping[str, Ended]], Awaitable[Ended]]
"""Do one piece by its name; what has ended so far, its needs among it, is given too."""


async def in_turn(needs: Mapping[str, Sequence[str]], perform: Perform[Ended]) -> dict[str, Ended]:
    """Do all of *needs*, each after those that it names; the first error cancels the rest, and is raised."""
    ends = {name: asyncio.Event() for name in needs}
    ended: dict[str, Ended] = {}

    async def one(name: str) -> None:
        for need in needs[name]:
            await ends[need].wait()
        ended[name] = await perform(name, ended)
        ends[name].set()

    try:
        async with asyncio.TaskGroup() as group:
            for name in needs:
                group.create_task(one(name))
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return ended
