"""Favour one side: where both changed the same lines, take that side's; merge the rest as usual.

This is `git merge -X ours`, which `merge-tree` does not support in the oldest git that we support.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import GitFailed
from shoal.git.conflicts import Conflicted, IndexEntry
from shoal.git.merge import MergeRepository
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import ConflictKind

PLAIN = ("100644", "100755")
BEFORE, OURS, THEIRS = 1, 2, 3
BINARY = 255
"""The exit code of `merge-file` for binary files."""


@dataclass(frozen=True, slots=True)
class _Resolution:
    """The resolution of a conflicting file."""

    mode: str
    oid: str


def has_sides(found: Conflicted) -> bool:
    """Return whether all conflicts are in files that exist on both sides."""
    return all(conflict.kind in (ConflictKind.CONTENT, ConflictKind.BINARY) for conflict in found.conflicts)


async def merge_favouring(bench: MergeRepository, ours: str, theirs: str, side: ConflictRule) -> str | None:
    """Merge two commits, with *side* winning conflicts; returns the tree, or `None` if a person has to decide.

    Only regular files of both sides qualify: not what one side deleted, renamed or replaced by a link.
    """
    asked = ("merge-tree", "--write-tree", "-z", "--no-messages", ours, theirs)
    tree, *words = (await bench.git(*asked, accept=(0, 1))).stdout.decode(errors="surrogateescape").split("\0")
    stages: dict[str, dict[int, IndexEntry]] = {}
    for entry in (IndexEntry.parse(word) for word in words if word):
        stages.setdefault(entry.path, {})[entry.stage] = entry
    if not all(_has_sides(sides) for sides in stages.values()):
        return None
    # Beside the bench: what a kill leaves there is removed with it.
    with tempfile.TemporaryDirectory(prefix="sides-", dir=bench.gitdir.parent) as scratch:
        chosen = {path: await _choose_side(bench, sides, side, Path(scratch)) for path, sides in stages.items()}
    return await _replace_files(bench, tree, chosen)


def _has_sides(stages: Mapping[int, IndexEntry]) -> bool:
    return {OURS, THEIRS} <= stages.keys() and all(entry.mode in PLAIN for entry in stages.values())


async def _choose_side(
    bench: MergeRepository, stages: Mapping[int, IndexEntry], side: ConflictRule, scratch: Path
) -> _Resolution:
    winner = stages[OURS if side is ConflictRule.OURS else THEIRS]
    files = {stage: scratch / str(stage) for stage in (OURS, BEFORE, THEIRS)}
    for stage, file in files.items():
        file.write_bytes(await _content(bench, stages.get(stage)))
    # The file names and the folder are ours: only the bytes are an agent's.
    asked = ("merge-file", "-p", "-q", f"--{side.value}", *map(str, files.values()))
    done = await bench.git(*asked, accept=(0, BINARY))
    if done.exit.code == BINARY or done.dropped:
        return _Resolution(_mode(stages, winner), winner.oid)
    stored = await bench.git("hash-object", "-w", "--no-filters", "--stdin", stdin=done.stdout)
    return _Resolution(_mode(stages, winner), stored.stdout.decode().strip())


def _mode(stages: Mapping[int, IndexEntry], winner: IndexEntry) -> str:
    """Take the mode of the side that changed it; if that is unclear, the winner's."""
    changed = [
        stages[side].mode for side in (OURS, THEIRS) if BEFORE in stages and stages[side].mode != stages[BEFORE].mode
    ]
    return changed[0] if changed else winner.mode


async def _content(bench: MergeRepository, entry: IndexEntry | None) -> bytes:
    if entry is None:
        return b""
    done = await bench.git("cat-file", "blob", entry.oid)
    if done.dropped:
        raise GitFailed(("cat-file",), 1, "a file in conflict is too large to be merged")
    return done.stdout


async def _replace_files(bench: MergeRepository, tree: str, chosen: Mapping[str, _Resolution]) -> str:
    """Write *tree* again with some files replaced, in the bench's own index."""
    await bench.git("read-tree", tree)
    lines = "".join(f"{choice.mode} {choice.oid}\t{path}\0" for path, choice in chosen.items())
    await bench.git("update-index", "-z", "--index-info", stdin=lines.encode(errors="surrogateescape"))
    return (await bench.git("write-tree")).stdout.decode().strip()


MARKER = "^(<{7,}|>{7,}|={7}|[|]{7,})([[:space:]]|$)"
AT_ONCE = 200
LOOK = ("grep", "-a", "-z", "--no-color", "--no-line-number", "--no-column", "--no-recurse-submodules", "--no-textconv")


async def find_markers(
    bench: MergeRepository, commit: str, paths: Sequence[str], sides: Sequence[str]
) -> tuple[str, ...]:
    """Return those of *paths* with more marker-like lines in *commit* than in both *sides* together.

    A text about git, or a heading's underline, contains such lines too: what was there before may stay.
    """
    had: Counter[tuple[str, str]] = Counter()
    for side in sides:
        had += await _markers(bench, side, paths)
    extra = (await _markers(bench, commit, paths)) - had
    return tuple(sorted({path for path, _ in extra}))


async def _markers(bench: MergeRepository, commit: str, paths: Sequence[str]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for first in range(0, len(paths), AT_ONCE):
        some = paths[first : first + AT_ONCE]
        done = await bench.git(*LOOK, "-E", "-e", MARKER, commit, "--", *some, accept=(0, 1))
        output = done.stdout.decode(errors="surrogateescape")
        found.update((name.removeprefix(f"{commit}:"), line) for name, line in _lines(output))
    return found


def _lines(output: str) -> Iterator[tuple[str, str]]:
    """Parse `commit:path NUL line`; a path may contain line ends, a line may not."""
    while output:
        name, _, rest = output.partition("\0")
        line, _, output = rest.partition("\n")
        yield name, line
