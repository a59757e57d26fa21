"""Sessions that changed the same files: a line for each pair during a run, a table at its end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import columns, count, heading, join_cells, some
from shoal.model.merge import Overlap

INDENT = "  "
NAMED = 3
MAX_PAIRS = 10
MAX_FILES = 10
MAX_NAMES = 4
LEGEND = "(x in conflict, ~ merges by itself)"
WIDEST = 30
"""With more sessions, the table is wider than a terminal; the list of pairs is enough."""


class OverlapLines:
    """Reports the first pairs as they appear, then once that there are more; workers of one step once."""

    def __init__(self, paint: Paint, indent: str) -> None:
        self._paint = paint
        self._indent = indent
        self._reported = 0
        self._steps: set[str] = set()

    def line(self, overlap: Overlap) -> str | None:
        """Name two sessions that changed the same files, and say whether they conflict."""
        if overlap.step is not None:
            return self._step(overlap.step, overlap)
        self._reported += 1
        if self._reported == MAX_PAIRS + 1:
            return f"{self._paint('overlap', 'warn')}  between more sessions; `shoal merge --preview` lists them all"
        if self._reported > MAX_PAIRS:
            return None
        names = f"{escape(overlap.one)} and {escape(overlap.other)}"
        return f"{self._paint('overlap', 'warn')}  {names}:\n{self._indent}{verdict(overlap, self._paint)}"

    def _step(self, step: str, overlap: Overlap) -> str | None:
        if step in self._steps:
            return None
        self._steps.add(step)
        return f"{self._paint('overlap', 'warn')}  {_siblings(step, [overlap])}"


def verdict(overlap: Overlap, paint: Paint) -> str:
    """Name the shared files, and say whether they conflict."""
    if not overlap.conflicts:
        return f"both changed {_names(overlap)}, without a conflict"
    kinds = "; ".join(f"{conflict.kind.value}: {some(conflict.paths, NAMED)}" for conflict in overlap.conflicts[:NAMED])
    more = f"; and {len(overlap.conflicts) - NAMED} more" if len(overlap.conflicts) > NAMED else ""
    return f"{paint('they conflict', 'bad')} ({kinds}{more})"


def matrix(names: Sequence[str], marks: Mapping[tuple[str, str], str], paint: Paint) -> Iterator[str]:
    """Draw a row and a column for each of *names*; a mark shows that two of them overlap."""
    if len(names) > WIDEST:
        return
    rows = [
        [f"{number} {escape(name)}", *(marks.get((name, other), ".") for other in names)]
        for number, name in enumerate(names, 1)
    ]
    head, *padded = columns([["", *map(str, range(1, len(names) + 1))], *rows])
    yield heading(head, paint)
    yield from map(join_cells, padded)


def overlap_lines(overlaps: Sequence[Overlap], paint: Paint) -> Iterator[str]:
    """Describe which files several agents changed; workers of one step did the same task, so they get one line."""
    for step in dict.fromkeys(overlap.step for overlap in overlaps if overlap.step is not None):
        siblings = [overlap for overlap in overlaps if overlap.step == step]
        yield f"{paint('overlap:', 'warn')} {_siblings(step, siblings)}"
    yield from _file_lines([overlap for overlap in overlaps if overlap.step is None], paint)


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file that more than one session changed."""

    path: str
    sessions: tuple[str, ...]
    is_in_conflict: bool


def find_shared_files(overlaps: Sequence[Overlap]) -> list[SharedFile]:
    """List the files that several sessions changed, those in conflict first."""
    sessions: dict[str, dict[str, None]] = {}
    conflicts: set[str] = set()
    for overlap in overlaps:
        clashing = [path for conflict in overlap.conflicts for path in conflict.paths]
        conflicts.update(clashing)
        for path in (*overlap.paths, *clashing):
            sessions.setdefault(path, {}).update({overlap.one: None, overlap.other: None})
    found = [SharedFile(path, tuple(names), path in conflicts) for path, names in sessions.items()]
    return sorted(found, key=lambda file: (not file.is_in_conflict, file.path))


def _file_lines(overlaps: Sequence[Overlap], paint: Paint) -> Iterator[str]:
    """Yield a line for each file: who changed it, and whether their changes conflict."""
    shared = find_shared_files(overlaps)
    if not shared:
        return
    conflicts = sum(file.is_in_conflict for file in shared)
    clash = f", {count(conflicts, 'conflict')}" if conflicts else ", no conflict"
    yield f"{paint('overlap:', 'warn')} {count(len(shared), 'file')} changed by more than one agent{clash} {LEGEND}"
    for file in shared[:MAX_FILES]:
        mark = paint("x", "bad") if file.is_in_conflict else paint("~", "warn")
        yield f"{INDENT}{mark} {escape(file.path)}: {some(list(file.sessions), MAX_NAMES)}"
    if len(shared) > MAX_FILES:
        yield f"{INDENT}… and {count(len(shared) - MAX_FILES, 'more file')}"


def _siblings(step: str, overlaps: Sequence[Overlap]) -> str:
    """Report the workers of one step together: they did the same task, and one result is enough."""
    files = some(list(dict.fromkeys(path for overlap in overlaps for path in overlap.paths)), NAMED)
    return f"workers of {escape(step)} changed the same files ({files}): they did the same task; `select:` picks one"


def _names(overlap: Overlap) -> str:
    more = f" and {overlap.files - NAMED} more" if overlap.files > NAMED else ""
    return ", ".join(map(escape, overlap.paths[:NAMED])) + more
