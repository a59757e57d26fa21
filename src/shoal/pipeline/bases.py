"""What `base: needs` would build on: steps of one worker or a chosen one, through gates and pipelines inside."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shoal.pipeline.problems import Position, Problem, key
from shoal.pipeline.shape import DEFAULT_WORKERS
from shoal.pipeline.step_nodes import given, needed_steps, title
from shoal.pipeline.tree import Fields, Node, Scalar, find, items, text

Steps = Mapping[str, Fields]


def base_problems(step: Fields, steps: Steps, tree: Node, at: Callable[[Position, str], Problem]) -> Iterator[Problem]:
    """Find why *step*, one of *steps*, cannot have the tree of its needs, where it asks for it."""
    base = find(step, "base")
    if base is None or text(base) != "needs":
        return
    needs = _needs(step, steps)
    if not needs:
        yield at(base.at, "`base: needs` on a step that needs nothing; use `run`, or say what it needs")
    for need in needs:
        for source in _sources(_Place(need, steps), tree):
            if _has_several_workers(source.step, tree) and not given(source.step, "select"):
                who = key(need) if source.label == need else f"{key(source.label)}, behind {key(need)},"
                what = f"{who} has several workers, and none of them is the one to build on"
                yield at(base.at, f"`base: needs`: {what}; give it a `select`, or use `auto` or `run`")


@dataclass(frozen=True, slots=True)
class _Place:
    """A step among those of its pipeline, and the step that this pipeline is, if any."""

    label: str
    steps: Steps
    outer: "_Place | None" = None

    @property
    def step(self) -> Fields:
        return self.steps[self.label]


def _sources(start: _Place, tree: Node) -> Iterator[_Place]:
    """Give the steps whose work *start* hands on: it may be a gate, or a pipeline, which have none of their own."""
    pipelines = {text(find(one, "name")): one for one in items(find(tree, "pipelines"))}
    seen: set[tuple[int, int]] = set()
    waiting = [start]
    while waiting:
        place = waiting.pop()
        mark = id(place.step), 0 if place.outer is None else id(place.outer.step)
        if mark in seen:  # steps may wait for each other, and pipelines contain each other: that is told elsewhere
            continue
        seen.add(mark)
        inner = pipelines.get(text(given(place.step, "pipeline")) or "")
        if given(place.step, "gate"):
            waiting += _before(place)
        elif inner is not None:
            waiting += _last(inner, place)
        else:
            yield place


def _before(place: _Place) -> list[_Place]:
    """Give what a gate hands on: the work of its needs, and at the start of a pipeline that of the pipeline's needs."""
    while not (needs := _needs(place.step, place.steps)) and place.outer is not None:
        place = place.outer
        if text(given(place.step, "base")) not in (None, "auto", "needs"):
            return []
    return [_Place(need, place.steps, place.outer) for need in needs]


def _last(pipeline: Node, outer: _Place) -> list[_Place]:
    """Give the last steps of a pipeline: those that nobody inside of it needs."""
    found = [one for one in items(find(pipeline, "steps")) if isinstance(one, Fields)]
    steps = {label: one for one in found if (label := title(one)) is not None}
    needed = {need for one in steps.values() for need in _needs(one, steps)}
    return [_Place(label, steps, outer) for label in steps if label not in needed]


def _needs(step: Fields, steps: Steps) -> list[str]:
    return [need for node in needed_steps(step) if (need := text(node)) is not None and need in steps]


def _has_several_workers(step: Fields, tree: Node) -> bool:
    """Say whether more than one does the same work, `concurrency` being clamped; the work of a matrix goes together."""
    most = _number(find(tree, "runtime", "max_concurrent_workers"), DEFAULT_WORKERS)
    return min(_number(find(step, "concurrency"), 1), most) > 1


def _number(node: Node | None, otherwise: int) -> int:
    return node.value if isinstance(node, Scalar) and isinstance(node.value, int) else otherwise
