"""How many workers can be at work together: the heaviest set of steps of which none waits for another."""

import graphlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

EXACT = 300
"""Steps up to which the bound is the true one; more are bounded by chains, which takes no time."""


def width(needs: Mapping[str, Collection[str]], workers: Mapping[str, int]) -> int:
    """Say how many of *workers* can be at work at once, by what needs what; never too few.

    By Dilworth's theorem that many chains cover all of them, each worker once; and to cover by as few chains as can be
    is to match as many workers as can be with one that comes later in the same chain.
    """
    order = tuple(graphlib.TopologicalSorter(needs).static_order())
    if len(order) > EXACT:
        return sum(max(workers[name] for name in chain) for chain in _chains(order, needs))
    counts = [workers[name] for name in order]
    return sum(counts) - _matched(earlier(order, needs), counts)


def _chains(order: Sequence[str], needs: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Put each step behind one that it needs, where nobody stands there yet: two of a chain never run together."""
    ends: dict[str, list[str]] = {}
    for name in order:
        last = next((need for need in needs.get(name, ()) if need in ends), None)
        ends[name] = [] if last is None else ends.pop(last)
        ends[name].append(name)
    return list(ends.values())


def earlier(order: Sequence[str], needs: Mapping[str, Collection[str]]) -> list[int]:
    """Give for each step, as bits, all that must be over before it starts."""
    place = {name: index for index, name in enumerate(order)}
    found: list[int] = []
    for name in order:
        bits = 0
        for need in needs.get(name, ()):
            bits |= found[place[need]] | 1 << place[need]
        found.append(bits)
    return found


def _matched(earlier: Sequence[int], counts: Sequence[int]) -> int:
    """Match workers of each step with those of earlier ones, each at most once on either side, as many as can be."""
    spare = list(counts)
    flow: list[dict[int, int]] = [{} for _ in counts]  # of an earlier step: to which later ones, and how many
    total = 0
    for later, wanted in enumerate(counts):
        while wanted and (path := _path(later, earlier, spare, flow)):
            moved = min(wanted, spare[path[-1][1]], *(flow[one][after] for after, one in _given_up(path)))
            _apply(path, moved, flow)
            spare[path[-1][1]] -= moved
            wanted -= moved
            total += moved
    return total


Path = list[tuple[int, int]]
"""Pairs of a later and an earlier step that are to be matched; between two pairs, one is given up."""


def _path(start: int, earlier: Sequence[int], spare: Sequence[int], flow: Sequence[Mapping[int, int]]) -> Path:
    """Find how one more worker of *start* can be matched, perhaps by matching others anew."""
    came: dict[int, tuple[int, int]] = {}  # to a later step: from which one, over which earlier one
    seen, line = 0, [start]
    for later in line:
        for one in _bits(earlier[later] & ~seen):
            seen |= 1 << one
            if spare[one]:
                return _traced(start, later, one, came)
            for other, number in flow[one].items():
                if number and other not in came and other != start:
                    came[other] = (later, one)
                    line.append(other)
    return []


def _traced(start: int, later: int, one: int, came: Mapping[int, tuple[int, int]]) -> Path:
    path = [(later, one)]
    while later != start:
        later, one = came[later]
        path.append((later, one))
    return path[::-1]


def _given_up(path: Path) -> Iterator[tuple[int, int]]:
    """Give the pairs that the path takes apart."""
    return ((after, one) for (_, one), (after, _) in itertools.pairwise(path))


def _apply(path: Path, moved: int, flow: Sequence[dict[int, int]]) -> None:
    for later, one in path:
        flow[one][later] = flow[one].get(later, 0) + moved
    for after, one in _given_up(path):
        flow[one][after] -= moved


def _bits(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
