"""Which files were changed on more than one branch: where a merge may need a person."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.git.run import git


@dataclass(frozen=True, slots=True)
class Overlap:
    """A file, and the branches that changed it."""

    path: str
    branches: tuple[str, ...]


async def overlaps(gitdir: Path, base: str, commits: Mapping[str, str]) -> tuple[Overlap, ...]:
    """Name the files that more than one branch changed since *base*; *commits* are by their branch."""
    changed: dict[str, list[str]] = {}
    for branch, commit in commits.items():
        for path in await _paths(gitdir, base, commit):
            changed.setdefault(path, []).append(branch)
    return tuple(Overlap(path, tuple(changed[path])) for path in sorted(changed) if len(changed[path]) > 1)


async def _paths(gitdir: Path, base: str, commit: str) -> list[str]:
    wanted = ("-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=all")
    done = await git(gitdir, "diff-tree", *wanted, base, commit)
    return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
