"""Find what in a change runs code later: by file name, by parts of manifests, and repositories in the tree."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.git.commits import Content, contents, tree_names
from shoal.model.executable_files import (
    MOST_BYTES,
    UNREADABLE,
    ExecutableRules,
    find_changed_hooks,
    fold_path,
    instruction_paths,
    is_manifest,
    is_repository,
    possible_repositories,
)

AT_ONCE = 500
NAMED_AT_MOST = 100
NAME_CHARS = 500
MOST_MANIFESTS = 50
MOST_FOLDERS = 500
TREE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What a person should review: *held* is not merged without approval, *instructions* are only reported."""

    held: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()


async def flag_changes(
    gitdir: Path, base: str, commit: str, paths: Sequence[str], rules: ExecutableRules | None = None
) -> Flags:
    """Find in *paths*, which differ between two commits, what runs code later or instructs agents."""
    rules = rules or ExecutableRules()
    held: list[str] = []
    instructions: list[str] = []
    for first in range(0, len(paths), AT_ONCE):
        some = paths[first : first + AT_ONCE]
        held += rules.select(some)
        instructions += instruction_paths(some)
        await asyncio.sleep(0)
    rest = [path for path in paths if not rules.excepts(path)] if rules.excepted else paths
    held += await _manifests(gitdir, base, commit, [path for path in rest if is_manifest(path)], set(held))
    held += await _repositories(gitdir, commit, rest, rules)
    return Flags(held=_some(held), instructions=_some(instructions))


async def _manifests(gitdir: Path, base: str, commit: str, paths: Sequence[str], known: set[str]) -> list[str]:
    """Name the changed parts of manifests that run code; one that cannot be parsed counts as a whole."""
    judged = [path for path in paths[:MOST_MANIFESTS] if path not in known]
    found = [f"{path} ({UNREADABLE})" for path in paths[MOST_MANIFESTS:] if path not in known]
    names = [_name(side, path) for path in judged for side in (base, commit)]
    read = await contents(gitdir, names, limit=MOST_BYTES)
    for path, before, after in zip(judged, read[::2], read[1::2], strict=True):
        if after is not None and (after.kind != "blob" or after.data is None):
            found.append(f"{path} ({UNREADABLE})")
        elif after is not None and (parts := find_changed_hooks(path, before.data if before else None, after.data)):
            found.append(f"{path} ({', '.join(parts)})")
        await asyncio.sleep(0)
    return found


async def _repositories(gitdir: Path, commit: str, paths: Iterable[str], rules: ExecutableRules) -> list[str]:
    """Name the folders that git would take for repositories."""
    folders = list(dict.fromkeys(possible_repositories(paths)))
    folders = [folder for folder in folders if not rules.excepts(folder)]
    if len(folders) > MOST_FOLDERS:
        return [f"{len(folders)} folders that may be git repositories"]
    read = await contents(gitdir, [_name(commit, folder) for folder in folders], limit=TREE_BYTES)
    names: dict[str, set[str]] = {}
    for folder, content in zip(folders, read, strict=True):
        # Where case does not matter, folders that differ only by case are the same.
        names.setdefault(fold_path(folder), set()).update(_entries(content, len(commit)))
    hits = {folder for folder, entries in names.items() if is_repository(entries)}
    return [f"{folder or '.'} (a nested git repository)" for folder in folders if fold_path(folder) in hits]


def _entries(content: Content | None, digits: int) -> Iterable[str]:
    if content is None or content.kind != "tree":
        return ()
    # A manifest that is too large to read counts as executable.
    return ("HEAD", "objects", "refs") if content.data is None else tree_names(content.data, digits)


def _name(commit: str, path: str) -> bytes:
    return f"{commit}:{path}".encode(errors="surrogateescape")


def _some(found: Sequence[str]) -> tuple[str, ...]:
    """Name some of each folder, then how many more, so that no kind is hidden by another."""
    # First one per folder, so that a thousand files of one kind do not hide another kind.
    one_of_each = {path.rpartition("/")[0]: path for path in reversed(found)}
    named = [*dict.fromkeys((*sorted(one_of_each.values()), *found))] if len(found) > NAMED_AT_MOST else found
    more = (f"and {len(found) - NAMED_AT_MOST} more",) if len(found) > NAMED_AT_MOST else ()
    return (*(path[:NAME_CHARS] for path in named[:NAMED_AT_MOST]), *more)
