"""Patterns in patterns in patterns, at random, under one limiter."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import patterns
from shoal.patterns import AgentPool, Call, Limiter, Retry, use_limiter
from shoal.patterns.options import Options
from tests.patterns.acting import SOON, Boom, Watch


@dataclass(frozen=True)
class Leaf:
    """A call that works for some ticks."""

    ticks: int
    fails: bool


@dataclass(frozen=True)
class Node:
    """A call that works, waits for a pattern of others, and works again."""

    kind: str
    below: tuple["Leaf | Node", ...]
    limit: int | None


KINDS = [
    "gather",
    "settled",
    "race",
    "quorum",
    "map",
    "stream",
    "ordered",
    "broken_off",
    "stages",
    "balance",
    "events",
    "pool",
    "wait_for",
]
LEAVES = st.builds(Leaf, st.integers(0, 4), st.sampled_from([False, False, False, True]))
TREES: st.SearchStrategy[Leaf | Node] = st.recursive(
    LEAVES,
    lambda below: st.builds(
        Node, st.sampled_from(KINDS), st.lists(below, max_size=4).map(tuple), st.sampled_from([None, 1, 2])
    ),
    max_leaves=25,
)


class Forest:
    """Run trees and watch them: whoever runs code of its own counts, whoever waits for a pattern does not."""

    def __init__(self, pool: AgentPool[object]) -> None:
        self.watch = Watch()
        self.pool = pool

    def call(self, tree: Leaf | Node) -> Call[object]:
        return lambda: self.grown(tree)

    async def work(self, ticks: int = 1) -> None:
        with self.watch.on():
            for _ in range(ticks):
                await asyncio.sleep(0)

    async def grown(self, tree: Leaf | Node) -> object:
        if isinstance(tree, Leaf):
            await self.work(tree.ticks)
            if tree.fails:
                raise Boom
            return 1
        await self.work()
        try:
            return await self.below(tree)
        finally:
            await self.work()

    async def below(self, node: Node) -> object:
        calls = [self.call(tree) for tree in node.below]
        how: Options[Any] = {"limit": node.limit}
        match node.kind:
            case "gather" | "settled" | "race":
                return await getattr(patterns, node.kind)(calls, **how)
            case "quorum":
                return await patterns.quorum(calls, len(calls) // 2, **how)
            case "map":
                how["retry"] = Retry(attempts=2, wait_initial=0.0001, wait_max=0.0001, jitter=0)
                return await patterns.map(self.grown, node.below, **how)
            case "stages":
                return await patterns.stages(*(lambda _, call=call: call() for call in calls), **how)
            case "balance":
                return await patterns.balance(node.below, {"a": self.grown, "b": self.grown}, **how)
            case "events":
                async with aclosing(patterns.events(calls, **how)) as events:
                    async for _ in events:
                        await self.work()
                return None
            case "wait_for":
                return await asyncio.wait_for(patterns.gather(calls, **how), SOON)
            case "pool":
                return await patterns.settled([self.with_agent(call) for call in calls], **how)
            case _:
                return await self.streamed(node, **how)

    def with_agent(self, call: Call[object]) -> Call[object]:
        async def used() -> object:
            async with self.pool.agent():
                await self.work()
                return await call()

        return used

    async def streamed(self, node: Node, **how: Unpack[Options[object]]) -> int:
        seen = 0
        lazy = patterns.stream(self.grown, node.below, ordered=node.kind == "ordered", **how)
        doubled = patterns.stream(self.nothing, lazy)
        async with aclosing(doubled) as results:
            async for _ in results:
                await self.work()
                seen += 1
                if node.kind == "broken_off":
                    break
        return seen

    async def nothing(self, value: object) -> object:
        await self.work()
        return value


def grow(tree: Leaf | Node, max_concurrent: int, cancel_after: int | None) -> None:
    async def make() -> object:
        await patterns.gather([forest.call(Leaf(1, False))])
        return object()

    async def tended() -> None:
        async with pool:
            await patterns.settled([forest.call(tree)] * 3)

    async def scenario() -> None:
        with use_limiter(limiter):
            async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
                task = group.create_task(tended())
                if cancel_after is not None:
                    for _ in range(cancel_after):
                        await asyncio.sleep(0)
                    task.cancel()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    limiter = Limiter(max_concurrent)
    pool: AgentPool[object] = AgentPool(make, size=2, limiter=limiter)
    forest = Forest(pool)
    asyncio.run(scenario())

    assert (limiter.active, limiter.waiting, forest.watch.running) == (0, 0, 0)
    assert forest.watch.peak <= max_concurrent


@given(TREES, st.integers(1, 4), st.none() | st.integers(0, 150))
@settings(max_examples=120, deadline=None)
def test_however_patterns_nest_the_limit_holds_and_nothing_hangs(
    tree: Leaf | Node, max_concurrent: int, cancel_after: int | None
) -> None:
    grow(tree, max_concurrent, cancel_after)


@pytest.mark.deep
@given(TREES, st.integers(1, 4), st.none() | st.integers(0, 400))
@settings(max_examples=3000, deadline=None)
@pytest.mark.timeout(1200)
def test_however_many_nestings_are_tried_the_limit_holds(
    tree: Leaf | Node, max_concurrent: int, cancel_after: int | None
) -> None:
    grow(tree, max_concurrent, cancel_after)
