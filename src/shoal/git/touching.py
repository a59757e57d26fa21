"""Which files each of many commits changed, by one process, and which pairs of them touch the same places."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from shoal.errors import Broken
from shoal.git.difference import SAFE
from shoal.git.run import git
from shoal.model.repository import Repository

MOST_BYTES = 2**30
MOST_PAIRS = 20_000


async def touched(repository: Repository, base: str, commits: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Name the files in which each of *commits* differs from *base*."""
    asked = "".join(f"{commit} {base}\n" for commit in dict.fromkeys(commits))
    if not asked:
        return {}
    # Of trees alone nobody looks into a submodule, and two sides may change which commit it is at.
    how = ("diff-tree", "--stdin", *SAFE, "--ignore-submodules=none", "-z", "--raw", "--no-renames")
    done = await git(repository.git, *how, stdin=asked.encode(), limit=MOST_BYTES)
    if done.dropped:
        raise Broken("more files differ than can be looked at; merge fewer sessions at once")
    found: dict[str, list[str]] = {commit: [] for commit in commits}
    of = ""
    words = iter(done.stdout.decode(errors="surrogateescape").split("\0")[:-1])
    for word in words:
        if word.startswith(":"):  # facts about a file, whose name comes next
            found[of].append(next(words))
        else:
            of = word.strip()
    return {commit: tuple(paths) for commit, paths in found.items()}


def meeting(changed: Mapping[str, Iterable[str]]) -> tuple[list[tuple[str, str]], bool]:
    """Name the pairs that touch a place together, and say whether these are all of them.

    A place is a file, or a file where another has a folder. Renames of whole folders can conflict without that.
    """
    places: dict[str, list[str]] = {}
    for name, paths in changed.items():
        for path in paths:
            places.setdefault(path, []).append(name)
    pairs: dict[tuple[str, str], None] = {}
    order = {name: number for number, name in enumerate(changed)}
    for pair in _pairs(places):
        pairs[min(pair, key=order.__getitem__), max(pair, key=order.__getitem__)] = None
        if len(pairs) > MOST_PAIRS:
            return list(pairs)[:MOST_PAIRS], False
    return list(pairs), True


def _pairs(places: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    for path, names in places.items():
        yield from combinations(dict.fromkeys(names), 2)
        for folder in _folders(path):
            yield from ((one, other) for one in places.get(folder, ()) for other in names if one != other)


def _folders(path: str) -> Iterator[str]:
    at = path.find("/")
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)
