"""The shape of `strategy:`, in GitHub Actions' form and in that of items from an artifact."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails

from shoal.model.artifact import Artifact
from shoal.model.matrix import MOST_CELLS, BadMatrix, Matrix, Source, expand_matrix
from shoal.pipeline.fields import UNKNOWN_KEY, Shape, one_of, wrong
from shoal.pipeline.keys.artifacts import list_declared
from shoal.pipeline.names import PATTERN
from shoal.pipeline.problems import Position, Problem, key, nearest, show_value
from shoal.pipeline.tree import Fields, Items, Node, TreeEntry, find, items, key_position, text, value_of

EXAMPLE = "{os: [linux, mac], python: [3, 4]}"
OUTPUT = "output_artifacts"
LISTS = ("include", "exclude")
MOST_KEYS = ("max-parallel", "max_parallel", "max_concurrency")
FAIL_FAST_KEYS = ("fail-fast", "fail_fast")
ITEM_KEYS = ("items_source", "item_key", "item_id_key", "dependency_key")

At = Callable[[Position, str], Problem]

_AXIS = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_SOURCE = re.compile(rf"(?P<step>{PATTERN})[./](?P<artifact>.+)")


def _matrix(value: object) -> Matrix:
    if not isinstance(value, dict):
        hint = "items of an earlier step come by `items_source`"
        raise wrong(f"`matrix` must be a mapping of lists, like {EXAMPLE}, not {show_value(value)}; {hint}")
    axes = {name: values for name, values in value.items() if name not in LISTS}
    wrongs = [*_axis_lines(axes), *_entry_lines(value, axes)]
    if wrongs:
        raise ValidationError.from_exception_data("matrix", wrongs)
    found = Matrix(axes=axes, include=value.get("include") or (), exclude=value.get("exclude") or ())
    try:
        expand_matrix(found)
    except BadMatrix as error:
        raise wrong(str(error)) from None
    return found


def _axis_lines(axes: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    for name, values in axes.items():
        if name in ITEM_KEYS:
            yield _line(f"{key(name)} belongs beside `matrix`, not in it; move it out", (name,), UNKNOWN_KEY)
        elif not _AXIS.fullmatch(name):
            yield _line(f"{key(name)} is not a valid axis name; use letters, digits, `-` and `_`", (name,), UNKNOWN_KEY)
        elif not isinstance(values, list):
            yield _line(f"the axis {key(name)} must be a list of values, not {show_value(values)}", (name,))
        elif not values:
            yield _line(f"the axis {key(name)} is empty; write at least one value", (name,))


def _entry_lines(matrix: Mapping[str, object], axes: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    for name in LISTS:
        entries = matrix.get(name)
        if entries is not None and not isinstance(entries, list):
            yield _line(f"`{name}` must be a list of combinations, not {show_value(entries)}", (name,))
            continue
        if entries is not None and len(entries) > MOST_CELLS:
            yield _line(f"`{name}` has {len(entries)} entries; there may be {MOST_CELLS}", (name,))
            continue
        for index, entry in enumerate(entries or ()):
            if not isinstance(entry, dict) or not entry:
                what = f"an entry of `{name}` is a combination, like {{os: mac}}, not {show_value(entry or None)}"
                yield _line(what, (name, index))
            elif name == "exclude":
                for axis in entry.keys() - axes.keys():
                    yield _line(f"no axis named {key(axis)}; {nearest(axis, axes)}", (name, index, axis), UNKNOWN_KEY)


def _line(sentence: str, loc: tuple[str | int, ...], kind: str | None = None) -> InitErrorDetails:
    error = wrong(sentence, UNKNOWN_KEY) if kind == UNKNOWN_KEY else wrong(sentence)
    return InitErrorDetails(type=error, loc=loc, input=None)


def _source(written: str) -> str:
    if _parts(written) is None:
        what = "a step and one of its artifacts, like `plan/tasks.json` or `plan.tasks`"
        raise wrong(f"`items_source` is {what}, not {show_value(written)}")
    return written


def _parts(written: str | None) -> re.Match[str] | None:
    """Take a source apart into `step` and `artifact`, unless it leads out of the workspace."""
    found = _SOURCE.fullmatch(written or "")
    is_inside = found is not None and ".." not in found["artifact"].split("/") and not found["artifact"].startswith("/")
    return found if is_inside else None


def _path(written: str) -> str:
    if not all(part.strip() for part in written.split(".")):
        raise wrong(f"{show_value(written)} is not a dotted path; write it like `plan.tasks`")
    return written


_COMBINATIONS = {"type": "array", "items": {"type": "object", "minProperties": 1}}
Axes = Annotated[
    Matrix,
    PlainValidator(_matrix),
    WithJsonSchema(
        {
            "type": "object",
            "properties": dict.fromkeys(LISTS, _COMBINATIONS),
            "additionalProperties": {"type": "array", "minItems": 1},
        }
    ),
]
AtOnce = Annotated[int, Field(ge=1, le=MOST_CELLS)]
Dotted = Annotated[str, AfterValidator(_path)]


class StrategyShape(Shape):
    """How to spread a step over several workers with different work."""

    later: ClassVar[frozenset[str]] = frozenset({"child_pipeline", "input_template", "stacked"})

    type: Annotated[str, one_of("type", "matrix")] = "matrix"
    """The kind of strategy."""
    matrix: Axes | None = None
    """Axes and their values: one worker for each combination, adjusted by `include` and `exclude`."""
    max_parallel_dashed: AtOnce | None = Field(default=None, alias="max-parallel")
    """How many workers run at a time."""
    max_parallel: AtOnce | None = None
    """Alias of `max-parallel`."""
    max_concurrency: AtOnce | None = None
    """Alias of `max-parallel`."""
    fail_fast_dashed: bool | None = Field(default=None, alias="fail-fast")
    """The first failure stops the others."""
    fail_fast: bool | None = None
    """Alias of `fail-fast`."""
    items_source: Annotated[str, AfterValidator(_source)] | None = None
    """A step and one of its JSON artifacts, like `plan/tasks.json`: one worker for each item in it."""
    item_key: Dotted | None = None
    """Where the list of items is in that JSON, like `plan.tasks`."""
    item_id_key: str | None = None
    """Where an item has its id; default: `id` or `name`."""
    dependency_key: str | None = None
    """Where an item lists the ids of the items that it needs."""

    def to_matrix(self, left: Mapping[str, Sequence[Artifact]]) -> Matrix:
        """Build the matrix; *left* are the artifacts of earlier steps, by step name."""
        matrix = self.matrix or Matrix()
        most = self.max_parallel_dashed or self.max_parallel or self.max_concurrency
        return Matrix(
            axes=matrix.axes,
            include=matrix.include,
            exclude=matrix.exclude,
            source=self._to_source(left),
            item_key=self.item_key,
            item_id_key=self.item_id_key,
            dependency_key=self.dependency_key,
            most=most,
            is_fail_fast=self.fail_fast if self.fail_fast_dashed is None else self.fail_fast_dashed,
        )

    def _to_source(self, left: Mapping[str, Sequence[Artifact]]) -> Source | None:
        found = _parts(self.items_source)
        if found is None:
            return None
        known = {artifact.name: artifact.path for artifact in left.get(found["step"], ())}
        return Source(step=found["step"], artifact=_find_artifact(found["artifact"], known) or found["artifact"])


def matrix_problems(step: Node, needed: Mapping[str, Node], at: At) -> Iterator[Problem]:
    """Find what makes no sense in the strategy of *step*; *needed* are the steps that it needs, by name."""
    strategy = value_of(step, "strategy")
    if not isinstance(strategy, Fields):
        return
    yield from _form_problems(strategy, at)
    for keys in (MOST_KEYS, FAIL_FAST_KEYS):
        if len(twice := [name for name in keys if value_of(strategy, name)]) > 1:
            what = f"`{twice[0]}` and `{twice[1]}` are the same; keep one of them"
            yield at(key_position(strategy, [twice[1]]), what)
    if any(value_of(strategy, name) for name in FAIL_FAST_KEYS) and value_of(step, "on_failure"):
        what = "`on_failure` and `fail-fast` say the same in two ways; keep one of them"
        yield at(key_position(step, ["on_failure"]), what)
    yield from _enough_problems(step, strategy, at)
    yield from _concurrency_problems(step, strategy, at)
    yield from _source_problems(strategy, needed, at)


def _form_problems(strategy: Fields, at: At) -> Iterator[Problem]:
    written = [name for name in ITEM_KEYS if value_of(strategy, name)]
    if value_of(strategy, "matrix") and written:
        what = f"`{written[0]}` does not go with `matrix`; take the items or the axes"
        yield at(key_position(strategy, [written[0]]), what)
    elif not value_of(strategy, "matrix") and "items_source" not in written:
        yield at(strategy.at, f"`matrix` or `items_source` is missing; write one, like `matrix: {EXAMPLE}`")


def _enough_problems(step: Node, strategy: Fields, at: At) -> Iterator[Problem]:
    rule = value_of(step, "on_failure")
    if value_of(strategy, "dependency_key") and (text(rule) == "any" or value_of(rule, "quorum")):
        what = "items that wait for others (`dependency_key`) are all wanted, and some of them are never enough"
        yield at(key_position(step, ["on_failure"]), f"{what}; use `fail_fast` or `best_effort`")


def _concurrency_problems(step: Node, strategy: Fields, at: At) -> Iterator[Problem]:
    for name in ("matrix", "items_source"):
        if value_of(strategy, name) and value_of(step, "concurrency"):
            place = key_position(strategy, [name])
            what = f"`concurrency` and `strategy.{name}` (line {place.line}, column {place.column})"
            yield at(key_position(step, ["concurrency"]), f"{what} exclude each other; keep one of them")


def _source_problems(strategy: Fields, needed: Mapping[str, Node], at: At) -> Iterator[Problem]:
    node = value_of(strategy, "items_source")
    found = _parts(text(node))
    if node is None or found is None:
        return
    if found["step"] not in needed:
        what = f"items come from a step that this one needs, and {key(found['step'])} is none of them"
        yield at(node.at, f"{what}; add it to `needs`")
        return
    left = _artifact_paths(needed[found["step"]])
    if _find_artifact(found["artifact"], left) is None:
        what = f"step {key(found['step'])} leaves no artifact {show_value(found['artifact'])}"
        yield at(node.at, f"{what}; {nearest(found['artifact'], [*left, *left.values()])}")


def _artifact_paths(step: Node) -> dict[str, str]:
    """Return the paths of the artifacts that *step* leaves, by their names."""
    each = [
        Fields(artifact.at, {OUTPUT: TreeEntry(artifact.at, Items(artifact.at, (artifact,), 1))}, 2)
        for artifact in items(find(step, OUTPUT))
    ]
    return {name: _path_of(artifact) for artifact in each for name in list_declared(artifact)}


def _path_of(step: Node) -> str:
    return text(find(step, OUTPUT, 0, "path")) or text(find(step, OUTPUT, 0)) or ""


def _find_artifact(written: str, left: Mapping[str, str]) -> str | None:
    """Find the name of the artifact that is written by its name, its path, or the name of its file."""
    path = PurePosixPath(written)
    by_path = [name for name, declared in left.items() if PurePosixPath(declared) == path]
    by_file = [name for name, declared in left.items() if PurePosixPath(declared).name == written]
    return written if written in left else next(iter([*by_path, *by_file]), None)
