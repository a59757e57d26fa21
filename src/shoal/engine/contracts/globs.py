"""Which paths a pattern means: `*` stays in a folder, `**` goes through all of them."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

ANY = "**"


def fits_any(path: str, patterns: Iterable[str]) -> bool:
    """Say whether one of *patterns* means *path*."""
    return any(fits(path, pattern) for pattern in patterns)


def fits(path: str, pattern: str) -> bool:
    """Say whether *pattern* means *path*; without a slash it is a name in any folder, ending in one it is a folder."""
    wanted = pattern.split("/")
    if len(wanted) == 1:
        wanted = [ANY, *wanted]
    if wanted[-1] == "":
        wanted[-1] = ANY
    return _fits(path.split("/"), wanted)


def _fits(parts: list[str], wanted: list[str]) -> bool:
    """Match part by part: *met* are the numbers of parts that the pattern so far can have taken.

    By a set and not by trying: names are an agent's, and no choice of them may take long.
    """
    met = {0}
    for one in wanted:
        if one == ANY:
            met = set(range(min(met), len(parts) + 1)) if met else met
        else:
            met = {taken + 1 for taken in met if taken < len(parts) and fnmatchcase(parts[taken], one)}
    return len(parts) in met
