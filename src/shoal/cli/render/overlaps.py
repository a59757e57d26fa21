"""Sessions that changed the same files: a line for each pair while a run goes on, a table at its end."""

from collections.abc import Iterator, Mapping, Sequence

from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import columns, count, heading, join_cells, some
from shoal.model.overlap import Overlap

INDENT = "  "
NAMED = 3
TOLD = 10
WIDEST = 30
"""More sessions than this are wider than any terminal as a table; the list of pairs says it all."""


class OverlapLines:
    """Tells of pairs as they are seen: the first ones, then once that there are more; workers of one step once."""

    def __init__(self, paint: Paint, indent: str) -> None:
        self._paint = paint
        self._indent = indent
        self._told = 0
        self._steps: set[str] = set()

    def line(self, one: Overlap) -> str | None:
        """Say which two changed the same files, and whether they really conflict."""
        if one.step is not None:
            return self._step(one.step, one)
        self._told += 1
        if self._told == TOLD + 1:
            return f"{self._paint('overlap', 'warn')}  between more sessions; `shoal merge --preview` names them all"
        if self._told > TOLD:
            return None
        names = f"{escape(one.one)} and {escape(one.other)}"
        return f"{self._paint('overlap', 'warn')}  {names}:\n{self._indent}{verdict(one, self._paint)}"

    def _step(self, step: str, one: Overlap) -> str | None:
        if step in self._steps:
            return None
        self._steps.add(step)
        return f"{self._paint('overlap', 'warn')}  {_siblings(step, [one])}"


def verdict(one: Overlap, paint: Paint) -> str:
    """Say in which files, and whether a person will have to decide."""
    if not one.conflicts:
        return f"both changed {_names(one)}, without a conflict"
    kinds = "; ".join(f"{conflict.kind.value}: {some(conflict.paths, NAMED)}" for conflict in one.conflicts[:NAMED])
    more = f"; and {len(one.conflicts) - NAMED} more" if len(one.conflicts) > NAMED else ""
    return f"{paint('they conflict', 'bad')} ({kinds}{more})"


def matrix(names: Sequence[str], marks: Mapping[tuple[str, str], str], paint: Paint) -> Iterator[str]:
    """Draw a row and a column for each of *names*; a mark stands where two of them meet."""
    if len(names) > WIDEST:
        return
    rows = [
        [f"{number} {escape(name)}", *(marks.get((name, other), ".") for other in names)]
        for number, name in enumerate(names, 1)
    ]
    head, *padded = columns([["", *map(str, range(1, len(names) + 1))], *rows])
    yield heading(head, paint)
    yield from map(join_cells, padded)


def overlap_table(overlaps: Sequence[Overlap], paint: Paint) -> Iterator[str]:
    """Draw who overlaps with whom: `x` is a conflict, `~` the same files without one; of two alone a line says it."""
    for step in dict.fromkeys(one.step for one in overlaps if one.step is not None):
        yield f"{INDENT}{_siblings(step, [one for one in overlaps if one.step == step])}"
    yield from _pairs([one for one in overlaps if one.step is None], paint)


def _pairs(overlaps: Sequence[Overlap], paint: Paint) -> Iterator[str]:
    names = list(dict.fromkeys(name for one in overlaps for name in (one.one, one.other)))
    marks = {
        pair: "x" if one.conflicts else "~" for one in overlaps for pair in ((one.one, one.other), (one.other, one.one))
    }
    if len(names) > 2:
        yield from (f"{INDENT}{line}" for line in matrix(names, marks, paint))
    for one in overlaps[:TOLD]:
        yield f"{INDENT}{escape(one.one)} and {escape(one.other)}: {verdict(one, paint)}"
    if len(overlaps) > TOLD:
        yield f"{INDENT}… and {count(len(overlaps) - TOLD, 'more pair')}"


def _siblings(step: str, overlaps: Sequence[Overlap]) -> str:
    """Tell of the workers of one step at once: they did the same task, and one of them is enough."""
    files = some(list(dict.fromkeys(path for one in overlaps for path in one.paths)), NAMED)
    return f"workers of {escape(step)} changed the same files ({files}): they did the same task; `select:` picks one"


def _names(one: Overlap) -> str:
    more = f" and {one.files - NAMED} more" if one.files > NAMED else ""
    return ", ".join(map(escape, one.paths[:NAMED])) + more
