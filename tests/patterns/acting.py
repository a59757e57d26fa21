"""Calls to coordinate: they count themselves, and continue when told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Unpack

from shoal import patterns
from shoal.patterns import Call, Cancelled, Err, Finished, Limiter, Ok, Outcome
from shoal.patterns.options import Options

SOON = 30.0  # no test waits so long unless something is broken


class Boom(Exception):
    """What a call fails with."""


class Watch:
    """Who runs now, who ever did, and how many at once."""

    def __init__(self) -> None:
        self.running = 0
        self.peak = 0
        self.begun: list[object] = []
        self.ended: list[object] = []
        self.begins = asyncio.Event()

    @contextmanager
    def on(self, name: object = None) -> Iterator[None]:
        """Count the block as running."""
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.begun.append(name)
        self.begins.set()
        try:
            yield
        finally:
            self.running -= 1
            self.ended.append(name)

    async def until(self, count: int) -> None:
        """Wait until so many have begun."""
        while len(self.begun) < count:
            self.begins.clear()
            await self.begins.wait()

    def good(self, value: int, ticks: int = 1) -> Call[int]:
        async def call() -> int:
            with self.on(value):
                for _ in range(ticks):
                    await asyncio.sleep(0)
                return value

        return call

    def bad(self, error: Exception, ticks: int = 1) -> Call[int]:
        async def call() -> int:
            with self.on(error):
                for _ in range(ticks):
                    await asyncio.sleep(0)
                raise error

        return call

    def endless(self) -> Call[int]:
        """A call that ends only by being cancelled, and takes some ticks to clean up."""

        async def call() -> int:
            with self.on("endless"):
                try:
                    await asyncio.Event().wait()
                finally:
                    for _ in range(5):
                        await asyncio.sleep(0)
            raise AssertionError

        return call


Runner = Callable[..., Awaitable[list[Any]]]


async def _run(call: Call[int]) -> int:
    return await call()


async def _race(calls: Sequence[Call[int]], **options: Unpack[Options[int]]) -> list[Any]:
    return [await patterns.race(calls, **options)]


async def _quorum(calls: Sequence[Call[int]], **options: Unpack[Options[int]]) -> list[Any]:
    return await patterns.quorum(calls, len(calls), **options)


async def _stages(calls: Sequence[Call[int]], **options: Unpack[Options[int]]) -> list[Any]:
    def stage(call: Call[int]) -> Callable[[object], Awaitable[int]]:
        return lambda _: call()

    return list(await patterns.stages([stage(call) for call in calls], **options))


async def _stream(calls: Sequence[Call[int]], **options: Unpack[Options[int]]) -> list[Any]:
    return sorted([one async for one in patterns.stream(_run, calls, **options)], key=lambda one: one.index)


async def _ordered(calls: Sequence[Call[int]], **options: Unpack[Options[int]]) -> list[Any]:
    return [one async for one in patterns.stream(_run, calls, ordered=True, **options)]


async def _events(calls: Sequence[Call[int]], **options: Unpack[Options[int]]) -> list[Any]:
    seen = [event async for event in patterns.events(calls, **options)]
    return sorted([one.outcome for one in seen if isinstance(one, Finished)], key=lambda one: one.index)


async def _pool(calls: Sequence[Call[int]], **options: Unpack[Options[int]]) -> list[Any]:
    async def make() -> object:
        return object()

    async with patterns.AgentPool(make, size=4) as pool:

        async def used(call: Call[int]) -> int:
            async with pool.agent():
                return await call()

        return await patterns.gather([lambda call=call: used(call) for call in calls], **options)  # type: ignore[misc]


async def _balance(calls: Sequence[Call[int]], **options: Unpack[Options[int]]) -> list[Any]:
    return list(await patterns.balance(calls, {"one": _run, "two": _run}, **options))


# The first failure of one is raised by these, and told as a value by those.
RAISING: dict[str, Runner] = {"gather": patterns.gather, "stages": _stages, "pool": _pool}
TELLING: dict[str, Runner] = {
    "settled": patterns.settled,
    "map": lambda calls, **options: patterns.map(_run, calls, **options),
    "stream": _stream,
    "ordered": _ordered,
    "events": _events,
    "balance": _balance,
}
EVERY: dict[str, Runner] = RAISING | TELLING | {"race": _race, "quorum": _quorum}


def plain(results: list[int | Outcome[int]]) -> list[object]:
    """Strip outcomes to what is in them."""
    stripped: list[object] = []
    for result in results:
        match result:
            case Ok(value):
                stripped.append(value)
            case Err(error):
                stripped.append(error)
            case Cancelled():
                stripped.append("cancelled")
            case _:
                stripped.append(result)
    return stripped


@asynccontextmanager
async def limited(max_concurrent: int) -> AsyncIterator[Limiter]:
    """Use a fresh limiter, bound in time, and see that every slot came back."""
    limiter = Limiter(max_concurrent)
    with patterns.use_limiter(limiter):
        async with asyncio.timeout(SOON):
            yield limiter
    assert (limiter.active, limiter.waiting) == (0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "something runs after the pattern"
