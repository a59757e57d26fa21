"""Which paths a pattern means: `*` stays in a folder, `**` goes through all of them."""

import asyncio
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

ANY = "**"
AT_ONCE = 50


async def fitting(paths: Iterable[str], patterns: Collection[str]) -> frozenset[str]:
    """Give those of *paths* that one of *patterns* means."""
    found: set[str] = set()
    for number, path in enumerate(paths):
        if fits_any(path, patterns):
            found.add(path)
        if number % AT_ONCE == 0:  # there may be a hundred thousand, each of a thousand folders, and others are waiting
            await asyncio.sleep(0)
    return frozenset(found)


def fits_any(path: str, patterns: Iterable[str]) -> bool:
    """Say whether one of *patterns* means *path*."""
    parts = path.split("/")
    return any(_fits(parts, _taken_apart(pattern)) for pattern in patterns)


def fits(path: str, pattern: str) -> bool:
    """Say whether *pattern* means *path*; without a slash it is a name in any folder, ending in one it is a folder."""
    return fits_any(path, (pattern,))


@lru_cache(maxsize=1024)
def _taken_apart(pattern: str) -> tuple[str, ...]:
    wanted = pattern.split("/")
    if len(wanted) == 1:
        wanted = [ANY, *wanted]
    if wanted[-1] == "":
        wanted[-1] = ANY
    return tuple(wanted)


def _fits(parts: list[str], wanted: tuple[str, ...]) -> bool:
    """Match part by part: *met* are the numbers of parts that the pattern so far can have taken.

    By a set and not by trying: names are an agent's, and no choice of them may take long.
    """
    if wanted[-1] != ANY and not fnmatchcase(parts[-1], wanted[-1]):  # so it is nearly always
        return False
    met = {0}
    for one in wanted:
        if one == ANY:
            met = set(range(min(met), len(parts) + 1)) if met else met
        else:
            met = {taken + 1 for taken in met if taken < len(parts) and fnmatchcase(parts[taken], one)}
    return len(parts) in met
