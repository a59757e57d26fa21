"""Names that a file system without case takes for one: two sides can bring them together without git's noticing."""

import unicodedata
from collections.abc import Iterable

from shoal.git.merge import Bench


async def new_clashes(bench: Bench, before: str, after: str) -> tuple[tuple[str, ...], ...]:
    """Name the paths of the tree *after* that differ only by case, and did not do so in *before*."""
    found = clashes(await _paths(bench, after))
    if not found:
        return ()
    known = set(clashes(await _paths(bench, before)))
    return tuple(clash for clash in found if clash not in known)


def clashes(paths: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Name the files and folders that differ from another only by case, together with it."""
    spelled: dict[str, set[str]] = {}
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            place = "/".join(parts[:end])
            folder = "/".join(parts[: end - 1])
            # Below two spellings of one folder every name would be told again.
            spelled.setdefault(f"{folder}/{_folded(parts[end - 1])}", set()).add(place)
    return tuple(tuple(sorted(places)) for places in spelled.values() if len(places) > 1)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


async def _paths(bench: Bench, tree: str) -> list[str]:
    done = await bench.git("ls-tree", "-r", "-z", "--name-only", tree)
    return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
