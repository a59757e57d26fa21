"""A matrix: one worker for each combination of axes, or for each item that an earlier step left."""

import graphlib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.errors import BadInput

MOST_CYCLES = 20


def draw_cycle(needs: Mapping[str, Collection[str]]) -> str | None:
    """Draw the first cycle of names that need each other (`a → b → a`: a needs b), or return `None`."""
    return next((" → ".join(cycle) for cycle in cycles(needs)), None)


def cycles(needs: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Yield cycles of names that need each other, no name in two of them; the first name of each is repeated last."""
    left = {name: list(wanted) for name, wanted in needs.items()}
    for _ in range(MOST_CYCLES):
        try:
            return graphlib.TopologicalSorter(left).prepare()
        except graphlib.CycleError as error:
            # graphlib lists each name before the one that needs it; to a reader "needs" points the other way.
            cycle = list(reversed(error.args[1]))
        yield cycle
        left = {
            name: [need for need in wanted if need not in cycle] for name, wanted in left.items() if name not in cycle
        }


MOST_CELLS = 256
MOST_TRIED = 10_000  # combinations that are tried before `exclude` must have made them few enough
LONGEST_ID = 200
USUAL_IDS = ("id", "name")
SHOWN = 60

Values = Mapping[str, object]


class BadMatrix(BadInput):
    """An invalid matrix; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where items come from: an artifact of an earlier step."""

    step: str
    artifact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Axes with inclusions and exclusions, or a source of items and how to read them."""

    axes: Mapping[str, Sequence[object]] = field(default_factory=dict)
    include: Sequence[Values] = ()
    exclude: Sequence[Values] = ()
    source: Source | None = None
    item_key: str | None = None
    """The dotted path of the list in the source's document; `None` means that the document is the list."""
    item_id_key: str | None = None
    """Where an item has its id; `None` means `id`, else `name`, else its number."""
    dependency_key: str | None = None
    """Where an item lists the ids of the items that must succeed before it."""
    most: int | None = None
    """How many cells run at once; `None` means as many as the run allows."""
    is_fail_fast: bool | None = None
    """Whether the first failure stops the rest; `None` means what the step's `on_failure` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One worker's part: the values of `matrix.…` and `item`; its *id* is somebody's data."""

    index: int
    id: str
    values: Values = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    item: object = None

    @property
    def label(self) -> str:
        """Return the id as a short word that is safe to show."""
        dashed = re.sub(r"[^a-z0-9]+", "-", self.id[:LONGEST_ID].lower()).strip("-")
        return dashed[:40].rstrip("-") or str(self.index)


def expand_matrix(matrix: Matrix) -> tuple[Cell, ...]:
    """Expand the axes by GitHub Actions' rules: exclude, then extend matching combinations by `include`, or add it.

    An entry of `include` fits a combination of the axes if it would change none of the axes' values.
    """
    originals = _combinations(matrix)
    _assert_few(len(originals), "combinations")
    cells, added = [dict(original) for original in originals], []
    for extra in matrix.include:
        fitting = [cell for cell, original in zip(cells, originals, strict=True) if _fits(extra, original)]
        for cell in fitting:
            cell.update(extra)
        if not fitting:
            added.append(dict(extra))
    cells += added
    if not cells:
        raise BadMatrix("the matrix has no combinations left; exclude fewer, or include one")
    _assert_few(len(cells), "combinations")
    ids = _distinct([_title(cell) for cell in cells])
    return tuple(
        Cell(index=index, id=cell_id, values=cell, item=cell)
        for index, (cell_id, cell) in enumerate(zip(ids, cells, strict=True))
    )


def from_items(matrix: Matrix, document: object) -> tuple[Cell, ...]:
    """Make a cell for each item of a JSON document; raise `BadMatrix` for invalid ids and dependencies."""
    items = _list(document, matrix.item_key)
    _assert_few(len(items), "items")
    ids = _ids(matrix, items)
    needs = [_needs(item, ids[index], matrix.dependency_key) for index, item in enumerate(items)]
    _assert_possible(ids, needs)
    return tuple(
        Cell(
            index=index, id=ids[index], values=item if isinstance(item, Mapping) else {}, needs=needs[index], item=item
        )
        for index, item in enumerate(items)
    )


def _combinations(matrix: Matrix) -> list[dict[str, object]]:
    if not matrix.axes:
        return []
    if (number := math.prod(len(values) for values in matrix.axes.values())) > MOST_TRIED:
        raise BadMatrix(f"the axes make {number} combinations; there may be {MOST_CELLS}, so shorten them")
    every = (dict(zip(matrix.axes, values, strict=True)) for values in itertools.product(*matrix.axes.values()))
    return [cell for cell in every if not any(_is_part(bad, cell) for bad in matrix.exclude)]


def _fits(extra: Values, original: Values) -> bool:
    return all(_same(value, original[name]) for name, value in extra.items() if name in original)


def _is_part(part: Values, whole: Values) -> bool:
    return all(name in whole and _same(value, whole[name]) for name, value in part.items())


def _same(left: object, right: object) -> bool:
    """Compare as JSON does: to Python, true is 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right


def _title(values: Values) -> str:
    return ", ".join(_text(value) for value in values.values())[:LONGEST_ID]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def _distinct(titles: Sequence[str]) -> list[str]:
    """Number duplicate titles: `1` and `"1"` look the same."""
    return [f"{title} #{index}" if titles.count(title) > 1 else title for index, title in enumerate(titles)]


def _list(document: object, path: str | None) -> Sequence[object]:
    """Find the list of items in the document."""
    for part in path.split(".") if path else ():
        if not isinstance(document, Mapping) or part not in document:
            raise BadMatrix(f"no `{part}` in the source of the items, on the way to {path!r}; {_keys(document)}")
        document = document[part]
    if isinstance(document, list | tuple):
        return document
    inner = document if path is None and isinstance(document, Mapping) else {}
    lists = [name for name, value in inner.items() if isinstance(value, list)]
    remedy = f"say `item_key: {_show_value(lists[0])}`" if lists else "write a list"
    raise BadMatrix(f"the items must be a JSON list, not {_kind(document)}; {remedy}")


def _ids(matrix: Matrix, items: Sequence[object]) -> list[str]:
    if matrix.item_id_key is not None:
        ids = [_id(item, matrix.item_id_key, index) for index, item in enumerate(items)]
        _assert_distinct(ids)
        return ids
    found = next((ids for ids in _usual_ids(items) if matrix.dependency_key or len(set(ids)) == len(ids)), None)
    if found is None:
        return [str(index) for index in range(len(items))]
    _assert_distinct(found)
    return found


def _usual_ids(items: Sequence[object]) -> Iterator[list[str]]:
    """Yield the ids of all items: under a usual key, or the items themselves if they are texts."""
    for name in USUAL_IDS:
        ids = [_as_id(item[name]) for item in items if isinstance(item, Mapping) and name in item]
        if len(ids) == len(items) and None not in ids:
            yield [item_id for item_id in ids if item_id is not None]
    texts = [_as_id(item) for item in items]
    if None not in texts:
        yield [text for text in texts if text is not None]


def _id(item: object, name: str, index: int) -> str:
    if not isinstance(item, Mapping) or name not in item:
        raise BadMatrix(f"item {index} has no `{name}` to be known by (`item_id_key`); {_keys(item)}")
    found = _as_id(item[name])
    if found is None:
        rule = f"text of at most {LONGEST_ID} characters, or a number"
        raise BadMatrix(f"the `{name}` of item {index} is not a valid id ({rule}): {_show_value(item[name])}")
    return found


def _as_id(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    if isinstance(value, int):
        return str(value) if abs(value) < 10**18 else None
    return value if value.strip() and len(value) <= LONGEST_ID else None


def _needs(item: object, own: str, name: str | None) -> tuple[str, ...]:
    written = item.get(name) if name is not None and isinstance(item, Mapping) else None
    listed = [] if written is None else written if isinstance(written, list | tuple) else [written]
    needs = [_as_id(need) for need in listed]
    if None in needs:
        raise BadMatrix(
            f"the `{name}` of item {_show_value(own)} must be ids of other items, not {_show_value(written)}"
        )
    return tuple(dict.fromkeys(need for need in needs if need is not None))


def _assert_distinct(ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for index, item_id in enumerate(ids):
        if item_id in first:
            raise BadMatrix(
                f"items {first[item_id]} and {index} are both {_show_value(item_id)}; give each an id of its own"
            )
        first[item_id] = index


def _assert_possible(ids: Sequence[str], needs: Sequence[tuple[str, ...]]) -> None:
    for own, wanted in zip(ids, needs, strict=True):
        for need in wanted:
            if need not in ids:
                raise BadMatrix(
                    f"item {_show_value(own)} needs {_show_value(need)}, and there is no such item; {_list_names(ids)}"
                )
    # The ids are somebody's data: formatted with `repr`, nothing in them can move a cursor.
    drawn = {repr(own): [repr(need) for need in wanted] for own, wanted in zip(ids, needs, strict=True)}
    if cycle := draw_cycle(drawn):
        raise BadMatrix(f"these items depend on each other: {cycle[:500]}; remove a dependency")


def _assert_few(number: int, what: str) -> None:
    if number > MOST_CELLS:
        raise BadMatrix(f"the matrix has {number} {what}; there may be {MOST_CELLS}, so split the work")


def _keys(value: object) -> str:
    return _list_names(value) if isinstance(value, Mapping) else f"it is {_kind(value)}"


def _list_names(names: Iterable[object]) -> str:
    some = [_show_value(name) for name in itertools.islice(names, 10)]
    return f"known: {', '.join(some) or 'none'}"


def _kind(value: object) -> str:
    return (
        "a mapping"
        if isinstance(value, Mapping)
        else "a list"
        if isinstance(value, list | tuple)
        else _show_value(value)
    )


def _show_value(value: object) -> str:
    if value is None:
        return "nothing"
    whole = _kind(value) if isinstance(value, Mapping | list | tuple) else repr(value)
    return whole if len(whole) <= SHOWN else f"{whole[:SHOWN]}…"
