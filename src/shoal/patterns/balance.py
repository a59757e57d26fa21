"""Distribute work among agents that can all do it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias, TypeVar, Unpack

from shoal.errors import BadInput, UnknownName
from shoal.patterns.combine import map as map_settled
from shoal.patterns.options import Options
from shoal.patterns.outcome import Outcome
from shoal.patterns.source import Source

T = TypeVar("T")
Item = TypeVar("Item")

Strategy: TypeAlias = Literal["least_loaded", "round_robin"]


async def balance(
    items: Source[Item],
    agents: Mapping[str, Callable[[Item], Awaitable[T]]] | Sequence[Callable[[Item], Awaitable[T]]],
    *,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    strategy: Strategy = "least_loaded",
    **options: Unpack[Options[T]],
) -> list[Outcome[T]]:
    """Give each item to one of *agents*, and return their outcomes in input order.

    `least_loaded` takes the agent with the least running work for its weight, `round_robin` lets them take turns in
    proportion to their weights. An agent is chosen anew for each attempt of a retry. *agents* may be a list, in which
    the same agent may occur several times; *weights* is a list then too.
    """
    hands = agents if isinstance(agents, Mapping) else {f"agent {n}": agent for n, agent in enumerate(agents, start=1)}
    context = WorkerQueue(dict.fromkeys(hands, 1.0) | _weights(hands, weights), strategy)

    async def handle(item: Item) -> T:
        with context.chosen() as name:
            return await hands[name](item)

    return await map_settled(handle, items, **options)


def _weights(hands: Mapping[str, object], weights: Mapping[str, float] | Sequence[float] | None) -> dict[str, float]:
    if isinstance(weights, Mapping):
        for name in weights.keys() - hands.keys():
            raise UnknownName("agent", name, hands)
        return dict(weights)
    if weights is not None and len(weights) != len(hands):
        raise BadInput(f"there are {len(hands)} agents and {len(weights)} weights; give one weight for each agent")
    return dict(zip(hands, weights or (), strict=False))


class WorkerQueue:
    """Chooses the agent for the next item."""

    def __init__(self, weights: Mapping[str, float], strategy: Strategy) -> None:
        if not weights or min(weights.values()) <= 0:
            raise BadInput("there must be at least one agent, and every weight must be above 0")
        self._weights = dict(weights)
        self._busy = dict.fromkeys(weights, 0)
        self._served = dict.fromkeys(weights, 0)
        self._by_turn = strategy == "round_robin"

    @contextmanager
    def chosen(self) -> Iterator[str]:
        """Choose an agent, and count it as busy inside the block."""
        name = min(self._weights, key=self._burden)
        self._served[name] += 1
        self._busy[name] += 1
        try:
            yield name
        finally:
            self._busy[name] -= 1

    def _burden(self, name: str) -> tuple[float, float]:
        busy = 0 if self._by_turn else (self._busy[name] + 1) / self._weights[name]
        return busy, (self._served[name] + 1) / self._weights[name]
