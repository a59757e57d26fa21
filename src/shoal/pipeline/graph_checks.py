"""Check `base: needs`: which steps' work it would build on, through gates and nested pipelines."""

import graphlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.pipeline.problems import Position, Problem, key, printable
from shoal.pipeline.shape import DEFAULT_WORKERS
from shoal.pipeline.tree import Fields, Node, Scalar, find, items, key_position, list_needs, text, title, value_of

Steps = Mapping[str, Fields]
FEWEST = 2
"""Needs that can conflict."""


def on_conflict_problems(step: Fields, at: Callable[[Position, str], Problem]) -> Iterator[Problem]:
    """Find an `on_conflict` on *step* that has no effect: nothing is merged for it."""
    if value_of(step, "on_conflict") is None:
        return
    place = key_position(step, ["on_conflict"])
    base = text(value_of(step, "base"))
    if base not in (None, "auto", "needs"):
        what = f"`on_conflict` has no effect with `base: {printable(base)}`, which merges no work of needs"
        yield at(place, f"{what}; remove one of them")
    elif len({text(node) for node in list_needs(step)}) < FEWEST:
        what = "`on_conflict` has no effect on a step with fewer than two needs; remove it"
        yield at(place, f"{what}, or write it under `runtime.merge` for the end of the run")


def base_problems(step: Fields, steps: Steps, tree: Node, at: Callable[[Position, str], Problem]) -> Iterator[Problem]:
    """Find why *step*, one of *steps*, cannot start from the work of its needs, if it asks for that."""
    base = find(step, "base")
    if base is None or text(base) != "needs":
        return
    needs = _needs(step, steps)
    if not needs:
        yield at(base.at, "`base: needs` on a step that needs nothing; use `run`, or say what it needs")
    for need in needs:
        for source in _sources(_Place(need, steps), tree):
            if has_several_workers(source.step, tree) and not value_of(source.step, "select"):
                who = key(need) if source.label == need else f"{key(source.label)}, behind {key(need)},"
                what = f"{who} has several workers, and none of them is the one to build on"
                yield at(base.at, f"`base: needs`: {what}; give it a `select`, or use `auto` or `run`")


@dataclass(frozen=True, slots=True)
class _Place:
    """A step in its pipeline, and the step that runs this pipeline, if any."""

    label: str
    steps: Steps
    outer: "_Place | None" = None

    @property
    def step(self) -> Fields:
        return self.steps[self.label]


def _sources(start: _Place, tree: Node) -> Iterator[_Place]:
    """Yield the steps whose work *start* passes on: gates and pipelines have none of their own."""
    pipelines = {text(find(pipeline, "name")): pipeline for pipeline in items(find(tree, "pipelines"))}
    seen: set[tuple[int, int]] = set()
    waiting = [start]
    while waiting:
        place = waiting.pop()
        mark = id(place.step), 0 if place.outer is None else id(place.outer.step)
        if mark in seen:  # cycles of steps and pipelines are reported elsewhere
            continue
        seen.add(mark)
        inner = pipelines.get(text(value_of(place.step, "pipeline")) or "")
        if value_of(place.step, "gate"):
            waiting += _before(place)
        elif inner is not None:
            waiting += _last(inner, place)
        else:
            yield place


def _before(place: _Place) -> list[_Place]:
    """Return what a gate passes on: the work of its needs; at the start of a pipeline, that of the pipeline's needs."""
    while not (needs := _needs(place.step, place.steps)) and place.outer is not None:
        place = place.outer
        if text(value_of(place.step, "base")) not in (None, "auto", "needs"):
            return []
    return [_Place(need, place.steps, place.outer) for need in needs]


def _last(pipeline: Node, outer: _Place) -> list[_Place]:
    """Return the last steps of a pipeline: those that no other step in it needs."""
    found = [step for step in items(find(pipeline, "steps")) if isinstance(step, Fields)]
    steps = {label: step for step in found if (label := title(step)) is not None}
    needed = {need for step in steps.values() for need in _needs(step, steps)}
    return [_Place(label, steps, outer) for label in steps if label not in needed]


def _needs(step: Fields, steps: Steps) -> list[str]:
    return [need for node in list_needs(step) if (need := text(node)) is not None and need in steps]


def has_several_workers(step: Fields, tree: Node) -> bool:
    """Return whether several workers do the same work, after clamping `concurrency`; a matrix's work goes together."""
    if find(step, "from_queue") is not None:
        return False
    most = _number(find(tree, "runtime", "max_concurrent_workers"), DEFAULT_WORKERS)
    return min(_number(find(step, "concurrency"), 1), most) > 1


def _number(node: Node | None, otherwise: int) -> int:
    return node.value if isinstance(node, Scalar) and isinstance(node.value, int) else otherwise


EXACT = 300
"""Up to this number of steps the bound is exact; beyond, chains give an upper bound in no time."""


def width(needs: Mapping[str, Collection[str]], workers: Mapping[str, int]) -> int:
    """Return how many of *workers* can run at once, judging by their needs; never too few.

    By Dilworth's theorem, that many chains cover all of them, each worker once. Covering with the fewest chains means
    matching as many workers as possible with one that comes later in the same chain.
    """
    order = tuple(graphlib.TopologicalSorter(needs).static_order())
    if len(order) > EXACT:
        return sum(max(workers[name] for name in chain) for chain in _chains(order, needs))
    counts = [workers[name] for name in order]
    return sum(counts) - _match(earlier(order, needs), counts)


def _chains(order: Sequence[str], needs: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Chain each step to a free one that it needs: two steps of a chain never run together."""
    ends: dict[str, list[str]] = {}
    for name in order:
        last = next((need for need in needs.get(name, ()) if need in ends), None)
        ends[name] = [] if last is None else ends.pop(last)
        ends[name].append(name)
    return list(ends.values())


def earlier(order: Sequence[str], needs: Mapping[str, Collection[str]]) -> list[int]:
    """Return for each step, as bits, everything that must end before it starts."""
    place = {name: index for index, name in enumerate(order)}
    found: list[int] = []
    for name in order:
        bits = 0
        for need in needs.get(name, ()):
            bits |= found[place[need]] | 1 << place[need]
        found.append(bits)
    return found


def _match(earlier: Sequence[int], counts: Sequence[int]) -> int:
    """Match workers of each step with those of earlier ones, each at most once on either side, as many as can be."""
    spare = list(counts)
    flow: list[dict[int, int]] = [{} for _ in counts]  # of an earlier step: to which later ones, and how many
    total = 0
    for later, wanted in enumerate(counts):
        while wanted and (path := _path(later, earlier, spare, flow)):
            moved = min(
                wanted, spare[path[-1][1]], *(flow[before][after] for after, before in _list_dropped_pairs(path))
            )
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
        for before in _bits(earlier[later] & ~seen):
            seen |= 1 << before
            if spare[before]:
                return _trace(start, later, before, came)
            for other, number in flow[before].items():
                if number and other not in came and other != start:
                    came[other] = (later, before)
                    line.append(other)
    return []


def _trace(start: int, later: int, before: int, came: Mapping[int, tuple[int, int]]) -> Path:
    path = [(later, before)]
    while later != start:
        later, before = came[later]
        path.append((later, before))
    return path[::-1]


def _list_dropped_pairs(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the pairs that the path takes apart."""
    return ((after, before) for (_, before), (after, _) in itertools.pairwise(path))


def _apply(path: Path, moved: int, flow: Sequence[dict[int, int]]) -> None:
    for later, before in path:
        flow[before][later] = flow[before].get(later, 0) + moved
    for after, before in _list_dropped_pairs(path):
        flow[before][after] -= moved


def _bits(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
