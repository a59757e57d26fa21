"""Read the files of commits for contracts, and match paths: `*` stays in a folder, `**` crosses folders."""

import asyncio
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath

from shoal.contracts.workbench import PLAIN, Change
from shoal.errors import Broken
from shoal.git.run import git

ANY = "**"
AT_ONCE = 50


async def fitting(paths: Iterable[str], patterns: Collection[str]) -> frozenset[str]:
    """Return those of *paths* that match one of *patterns*."""
    found: set[str] = set()
    for number, path in enumerate(paths):
        if fits_any(path, patterns):
            found.add(path)
        if number % AT_ONCE == 0:  # there may be a hundred thousand, each in a thousand folders, and others are waiting
            await asyncio.sleep(0)
    return frozenset(found)


def fits_any(path: str, patterns: Iterable[str]) -> bool:
    """Return whether one of *patterns* matches *path*."""
    parts = path.split("/")
    return any(_fits(parts, _split_pattern(pattern)) for pattern in patterns)


def fits(path: str, pattern: str) -> bool:
    """Return whether *pattern* matches *path*; without a slash by name alone, with a trailing slash a folder."""
    return fits_any(path, (pattern,))


@lru_cache(maxsize=1024)
def _split_pattern(pattern: str) -> tuple[str, ...]:
    wanted = pattern.split("/")
    if len(wanted) == 1:
        wanted = [ANY, *wanted]
    if wanted[-1] == "":
        wanted[-1] = ANY
    return tuple(wanted)


def _fits(parts: list[str], wanted: tuple[str, ...]) -> bool:
    """Match part by part: *met* are the numbers of parts that the pattern so far can match.

    With a set, not by backtracking: agents choose the names, and none may make this slow.
    """
    if wanted[-1] != ANY and not fnmatchcase(parts[-1], wanted[-1]):  # nearly always the case
        return False
    met = {0}
    for part in wanted:
        if part == ANY:
            met = set(range(min(met), len(parts) + 1)) if met else met
        else:
            met = {taken + 1 for taken in met if taken < len(parts) and fnmatchcase(parts[taken], part)}
    return len(parts) in met


CHANGES_BYTES = 64 * 2**20
# Renames are detected as long as that is fast; one that is not detected is a deletion.
SAFE = ("-r", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "-M", "-l400")


async def blob(gitdir: Path, commit: str, path: str, limit: int) -> bytes | None:
    """Return the beginning of the regular file at *path*, or `None`."""
    if "\0" in path:
        return None
    path = str(PurePosixPath(path))
    done = await git(gitdir, "ls-tree", "-z", commit, "--", path)
    facts, _, name = done.stdout.decode(errors="surrogateescape").removesuffix("\0").partition("\t")
    mode, _, rest = facts.partition(" ")
    if name != path or mode not in PLAIN:
        return None
    return (await git(gitdir, "cat-file", "blob", rest.split(" ")[-1], limit=limit)).stdout


async def changes(gitdir: Path, base: str, commit: str) -> tuple[Change, ...]:
    """List the files that differ."""
    done = await git(gitdir, "diff-tree", *SAFE, "--raw", "-z", base, commit, limit=CHANGES_BYTES)
    if done.dropped:
        raise Broken("it changes too many files to check")
    return _parse_raw_diff(done.stdout.decode(errors="surrogateescape").split("\0")[:-1])


async def patch(gitdir: Path, base: str, commit: str, limit: int) -> str:
    """Return the diff as text, with a note of how much was left out."""
    done = await git(gitdir, "diff-tree", *SAFE, "--patch", base, commit, limit=limit)
    cut = f"\n[{done.dropped} more bytes are left out]" if done.dropped else ""
    return done.stdout.decode(errors="replace") + cut


def _parse_raw_diff(words: list[str]) -> tuple[Change, ...]:
    """Parse `:mode mode blob blob status`, path and, for a rename or a copy, its new path."""
    found, rest = [], iter(words)
    for head in rest:
        old_mode, mode, _, _, status = head.removeprefix(":").split(" ")
        old_path = next(rest)
        path = next(rest) if status[0] in "RC" else old_path
        found.append(Change(status=status[0], path=path, old_path=old_path, mode=mode, old_mode=old_mode))
    return tuple(found)
