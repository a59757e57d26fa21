"""Check the names in texts: each must be available when the step starts."""

import functools
import graphlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from shoal.pipeline.graph_checks import earlier, has_several_workers
from shoal.pipeline.keys.artifacts import list_declared
from shoal.pipeline.problems import Problem, key, nearest
from shoal.pipeline.templates.template import BadTemplate, uses
from shoal.pipeline.templates.texts import Text, persona_texts, texts
from shoal.pipeline.tree import Fields, Node, entries, find, items, list_needs, text, value_of

if TYPE_CHECKING:  # Jinja takes a moment to import, and most documents need no template
    from shoal.pipeline.templates.syntax import NameUse

ALWAYS = ("input", "run", "step", "steps", "artifacts")
WORKER = ("worker",)
CELL = ("matrix", "item", "task")
QUEUED = ("task",)
ROUND = ("loop",)
FIELDS = {
    "run": ("id", "pipeline"),
    "step": ("name",),
    "worker": ("index", "count"),
    "loop": ("round", "max", "previous"),
}
OF_ONE_WORKER = ("branch", "exit_code", "session", "files_changed", "attempts", "duration_seconds")
"""What is available of a step only if one worker represents it."""
TOLD = (
    "status", "output", "branch", "commit", "exit_code", "artifacts", "worker_results", "worker_workspaces",
    "success_count", "fail_count", "cancelled_count", "skipped_count", "total_workers", "selected", "error", "session",
    "files_changed", "attempts", "duration_seconds", "steps", "step",
)  # fmt: skip


def text_problems(
    steps: Mapping[str, Fields], tree: Node, name: str, files: Mapping[str, str], *, is_looped: bool = False
) -> Iterator[Problem]:
    """Find texts of *steps* that cannot be parsed, or use unknown names; *is_looped* if all are in a loop.

    *files* are the system prompts of personas in files of their own.
    """
    before = _Before(steps)
    for label, step in steps.items():
        known = _KnownNames(steps, label, tree, before, is_looped=is_looped)
        for template in (*texts(step), *persona_texts(step, tree, files)):
            yield from _problems(template, known, name)


def _problems(text: Text, known: "_KnownNames", name: str) -> Iterator[Problem]:
    try:
        found = uses(text.text, is_condition=text.is_condition)
    except BadTemplate as error:
        yield Problem(name, text.place(error.at), str(error))
        return
    for use in found:
        if not use.is_optional and (why := known.why_not(use, text)):
            yield Problem(name, text.place(use.at), why)


class _KnownNames:
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

    def why_not(self, use: "NameUse", where: Text) -> str | None:
        """Return why the name is not available, or `None`."""
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
        has_cells = value_of(find(self.step, "strategy"), "matrix") or find(self.step, "strategy", "items_source")
        has_agent = not value_of(self.step, "gate") and not value_of(self.step, "pipeline")
        is_in_round = value_of(self.step, "loop") and (where.is_until or not where.is_condition)  # `if` is asked before
        return (
            *ALWAYS,
            *(WORKER if has_agent and not where.is_condition else ()),
            *(CELL if has_cells and not where.is_condition else ()),
            *(QUEUED if value_of(self.step, "from_queue") and not where.is_condition else ()),
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
        if root == "steps" and fields and fields[0] in OF_ONE_WORKER and (why := self._why_not_of_one(step, label)):
            return f"{why}, and no {key(fields[0])} of its own; {self._way_to_one(step, label, fields[0])}"
        artifact = (
            fields[0]
            if root == "artifacts" and fields
            else fields[1]
            if fields[:1] == ["artifacts"] and fields[1:]
            else None
        )
        if artifact is not None and not value_of(step, "pipeline") and artifact not in (left := list_declared(step)):
            return f"step {key(label)} leaves no artifact named {key(artifact)}; {nearest(artifact, left)}"
        return None

    def _why_not_of_one(self, step: Fields, label: str) -> str | None:
        """Return why no single worker represents *step*, or `None`."""
        if value_of(step, "pipeline"):
            return f"step {key(label)} is a pipeline"
        if value_of(step, "gate"):
            return f"step {key(label)} is a gate"
        has_several = value_of(step, "strategy") or value_of(step, "from_queue") or has_several_workers(step, self.tree)
        return f"step {key(label)} has several workers" if has_several and not value_of(step, "select") else None

    def _way_to_one(self, step: Fields, label: str, field: str) -> str:
        if value_of(step, "gate"):
            return "name a step that it needs"
        if value_of(step, "pipeline"):
            return f"name a step inside, like {key(f'steps.{label}.steps.NAME.{field}')}"
        return f"name a worker, like {key(f'steps.{label}.worker_results[0].{field}')}, or choose one by `select`"

    def _why_not_axis(self, rest: list[str]) -> str | None:
        matrix = find(self.step, "strategy", "matrix")
        axes = {name for name in entries(matrix) if name not in ("include", "exclude")}
        axes |= {name for cell in items(find(matrix, "include")) for name in entries(cell)}
        if isinstance(matrix, Fields) and axes and rest[0] not in axes:
            return f"the matrix has no axis {key(rest[0])}; {nearest(rest[0], axes)}"
        return None


class _Before:
    """Which steps have certainly ended when another starts; computed once for all, who may be thousands."""

    def __init__(self, steps: Mapping[str, Fields]) -> None:
        written = {label: map(text, list_needs(step)) for label, step in steps.items()}
        needs = {
            label: [need for need in names if need is not None and need in steps] for label, names in written.items()
        }
        try:
            self.order = tuple(graphlib.TopologicalSorter(needs).static_order())
        except graphlib.CycleError:  # the cycle is reported, and must be fixed first
            self.order = ()
        self.places = {label: place for place, label in enumerate(self.order)}
        self.bits = earlier(self.order, needs)

    def holds(self, label: str, later: str) -> bool:
        """Return whether *label* has ended when *later* starts."""
        return not self.order or bool(self.bits[self.places[later]] >> self.places[label] & 1)

    def all(self, later: str) -> list[str]:
        """Name all that have ended when *later* starts."""
        return [label for label in self.order if self.holds(label, later)]


def _inner(step: Fields, tree: Node) -> dict[str, Fields]:
    """Return the steps of a step's pipeline, which its `until` may name."""
    wanted = text(find(step, "pipeline"))
    for pipeline in items(find(tree, "pipelines")) if wanted else ():
        if text(find(pipeline, "name")) == wanted:
            found = [inner for inner in items(find(pipeline, "steps")) if isinstance(inner, Fields)]
            return {
                label: inner for inner in found if (label := text(value_of(inner, "name") or value_of(inner, "id")))
            }
    return {}
