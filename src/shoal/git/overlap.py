"""Which files each branch changed, and which were changed on more than one: where a merge may need a person."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.git.difference import changed_paths


@dataclass(frozen=True, slots=True)
class Overlap:
    """A file, and the branches that changed it."""

    path: str
    branches: tuple[str, ...]


async def changes(gitdir: Path, base: str, commits: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Name the files that each branch changed since *base*; *commits* are by their branch."""
    return {branch: await changed_paths(gitdir, base, commit) for branch, commit in commits.items()}


def overlaps(changed: Mapping[str, Sequence[str]]) -> tuple[Overlap, ...]:
    """Name the files that more than one branch changed."""
    branches: dict[str, list[str]] = {}
    for branch, paths in changed.items():
        for path in paths:
            branches.setdefault(path, []).append(branch)
    return tuple(Overlap(path, tuple(found)) for path, found in sorted(branches.items()) if len(found) > 1)
