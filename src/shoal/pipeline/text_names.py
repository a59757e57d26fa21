"""The names that texts use: each must be one that there is when the step starts."""

import functools
import graphlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from shoal.pipeline.artifacts import declared
from shoal.pipeline.problems import Problem, key, nearest
from shoal.pipeline.step_nodes import given, needed_steps
from shoal.pipeline.template import BadTemplate, uses
from shoal.pipeline.texts import Text, persona_texts, texts
from shoal.pipeline.tree import Fields, Node, entries, find, items, text
from shoal.pipeline.width import earlier

if TYPE_CHECKING:  # Jinja takes a moment to import, and most documents need no template
    from shoal.pipeline.syntax import Use

ALWAYS = ("input", "run", "step", "steps", "artifacts")
WORKER = ("worker",)
CELL = ("matrix", "item", "task")
ROUND = ("loop",)
FIELDS = {
    "run": ("id", "pipeline"),
    "step": ("name",),
    "worker": ("index", "count"),
    "loop": ("round", "max", "previous"),
}
TOLD = (
    "status", "output", "branch", "commit", "exit_code", "artifacts", "worker_results", "worker_workspaces",
    "success_count", "fail_count", "cancelled_count", "skipped_count", "total_workers", "selected", "error", "session",
    "files_changed", "attempts", "duration_seconds", "steps", "step",
)  # fmt: skip


def text_problems(
    steps: Mapping[str, Fields], tree: Node, name: str, files: Mapping[str, str], *, is_looped: bool = False
) -> Iterator[Problem]:
    """Find texts of *steps* that cannot be read, or that name what there is not; *is_looped* if all are in a loop.

    *files* are the system prompts that personas have in files of their own.
    """
    before = _Before(steps)
    for label, step in steps.items():
        known = _Known(steps, label, tree, before, is_looped=is_looped)
        for one in (*texts(step), *persona_texts(step, tree, files)):
            yield from _problems(one, known, name)


def _problems(one: Text, known: "_Known", name: str) -> Iterator[Problem]:
    try:
        found = uses(one.text, is_condition=one.is_condition)
    except BadTemplate as error:
        yield Problem(name, one.place(error.at), str(error))
        return
    for use in found:
        if not use.is_optional and (why := known.why_not(use, one)):
            yield Problem(name, one.place(use.at), why)


class _Known:
    """What the texts of one step may name."""

    def __init__(
        self, steps: Mapping[str, Fields], label: str, tree: Node, before: "_Before", *, is_looped: bool
    ) -> None:
        self.steps = steps
        self.before = before
        self.step = steps[label]
        self.tree = tree
        self.label = label
        self.is_looped = is_looped

    @functools.cached_property
    def inner(self) -> dict[str, Fields]:
        """The steps of the pipeline that this one is."""
        return _inner(self.step, self.tree)

    def why_not(self, use: "Use", where: Text) -> str | None:
        """Say why the name cannot be had, or `None`."""
        root, *rest = use.path.split(".")
        roots = self._roots(where)
        if root not in roots:
            return f"no name {key(root)} here; {nearest(root, roots)}"
        if root in FIELDS and rest and rest[0] not in FIELDS[root]:
            return f"{key(root)} has no {key(rest[0])}; {nearest(rest[0], FIELDS[root])}"
        if root in ("steps", "artifacts") and rest:
            return self._why_not_step(root, rest, where)
        return self._why_not_axis(rest) if root == "matrix" and rest else None

    def _roots(self, where: Text) -> tuple[str, ...]:
        has_cells = given(find(self.step, "strategy"), "matrix") or find(self.step, "strategy", "items_source")
        has_agent = not given(self.step, "gate") and not given(self.step, "pipeline")
        is_in_round = given(self.step, "loop") and (where.is_until or not where.is_condition)  # `if` is asked before
        return (
            *ALWAYS,
            *(WORKER if has_agent and not where.is_condition else ()),
            *(CELL if has_cells and not where.is_condition else ()),
            *(ROUND if self.is_looped or is_in_round else ()),
            *(("this",) if where.is_until else ()),
        )

    def _why_not_step(self, root: str, rest: list[str], where: Text) -> str | None:
        label, *fields = rest
        inner = self.inner if where.is_until and root == "steps" else {}
        if label not in inner and not (label in self.steps and self.before.holds(label, self.label)):
            if label in self.steps:
                return f"step {key(label)} need not have ended when this one starts; add it to `needs`"
            return f"no step named {key(label)}; {nearest(label, [*self.before.all(self.label), *inner])}"
        step = inner.get(label) or self.steps[label]
        if root == "steps" and fields and fields[0] not in TOLD:
            return f"of a step there is no {key(fields[0])}; {nearest(fields[0], TOLD)}"
        artifact = (
            fields[0]
            if root == "artifacts" and fields
            else fields[1]
            if fields[:1] == ["artifacts"] and fields[1:]
            else None
        )
        if artifact is not None and not given(step, "pipeline") and artifact not in (left := declared(step)):
            return f"step {key(label)} leaves no artifact named {key(artifact)}; {nearest(artifact, left)}"
        return None

    def _why_not_axis(self, rest: list[str]) -> str | None:
        matrix = find(self.step, "strategy", "matrix")
        axes = {name for name in entries(matrix) if name not in ("include", "exclude")}
        axes |= {name for one in items(find(matrix, "include")) for name in entries(one)}
        if isinstance(matrix, Fields) and axes and rest[0] not in axes:
            return f"the matrix has no axis {key(rest[0])}; {nearest(rest[0], axes)}"
        return None


class _Before:
    """Which steps have surely ended when another one starts; asked once for all of them, who may be thousands."""

    def __init__(self, steps: Mapping[str, Fields]) -> None:
        written = {label: map(text, needed_steps(one)) for label, one in steps.items()}
        needs = {label: [one for one in names if one is not None and one in steps] for label, names in written.items()}
        try:
            self.order = tuple(graphlib.TopologicalSorter(needs).static_order())
        except graphlib.CycleError:  # that is told, and nothing else can be said before it is mended
            self.order = ()
        self.places = {label: place for place, label in enumerate(self.order)}
        self.bits = earlier(self.order, needs)

    def holds(self, label: str, later: str) -> bool:
        """Say whether *label* has ended when *later* starts."""
        return not self.order or bool(self.bits[self.places[later]] >> self.places[label] & 1)

    def all(self, later: str) -> list[str]:
        """Name all that have ended when *later* starts."""
        return [label for label in self.order if self.holds(label, later)]


def _inner(step: Fields, tree: Node) -> dict[str, Fields]:
    """Give the steps of the pipeline that *step* is, which its `until` may name."""
    wanted = text(find(step, "pipeline"))
    for one in items(find(tree, "pipelines")) if wanted else ():
        if text(find(one, "name")) == wanted:
            found = [inner for inner in items(find(one, "steps")) if isinstance(inner, Fields)]
            return {label: inner for inner in found if (label := text(given(inner, "name") or given(inner, "id")))}
    return {}
