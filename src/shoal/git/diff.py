"""Differences between commits, by plumbing commands that user configuration cannot change."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from shoal.errors import Broken
from shoal.git.run import git
from shoal.model.repository import Repository

MOST_BYTES = 2**30
SAFE = ("-r", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all")


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file, and how many lines were added and deleted; `None` for a binary one."""

    path: str
    added: int | None
    deleted: int | None

    def as_fields(self) -> dict[str, object]:
        """Return the fields by their names."""
        return asdict(self)


async def patch(gitdir: Path, base: str, commit: str, form: str = "--patch") -> bytes:
    """Return the diff, complete; *form* is `--patch`, `--stat` or `--name-only`."""
    whole = ("--binary", "--full-index") if form == "--patch" else ()
    done = await git(gitdir, "diff-tree", *SAFE, form, *whole, base, commit, limit=MOST_BYTES)
    if done.dropped:
        raise Broken(f"the difference is larger than {MOST_BYTES // 2**20} MiB; look at it with git itself")
    return done.stdout


async def patch_beginning(gitdir: Path, base: str, commit: str, most: int) -> bytes:
    """Return the first *most* bytes of the diff as text; of binary files only that they differ."""
    done = await git(gitdir, "diff-tree", *SAFE, "--patch", base, commit, limit=most)
    return done.stdout


async def list_changed_paths(gitdir: Path, base: str, commit: str) -> tuple[str, ...]:
    """Return the paths that differ."""
    done = await git(gitdir, "diff-tree", *SAFE, "-z", "--no-renames", "--name-only", base, commit, limit=MOST_BYTES)
    if done.dropped:
        raise Broken("more files differ than can be looked at; look at them with git itself")
    return tuple(done.stdout.decode(errors="surrogateescape").split("\0")[:-1])


async def list_changed_files(gitdir: Path, base: str, commit: str) -> tuple[ChangedFile, ...]:
    """List the files that differ."""
    done = await git(gitdir, "diff-tree", *SAFE, "-z", "--no-renames", "--numstat", base, commit, limit=MOST_BYTES)
    return tuple(_files(done.stdout.decode(errors="surrogateescape")))


def _files(listed: str) -> Iterator[ChangedFile]:
    for entry in listed.split("\0")[:-1]:
        added, deleted, path = entry.split("\t", 2)
        yield ChangedFile(path, _lines(added), _lines(deleted))


def _lines(number: str) -> int | None:
    return int(number) if number.isdigit() else None


MOST_PAIRS = 20_000


async def list_touched_files(repository: Repository, base: str, commits: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the paths in which each of *commits* differs from *base*."""
    asked = "".join(f"{commit} {base}\n" for commit in dict.fromkeys(commits))
    if not asked:
        return {}
    # Comparing trees does not look into submodules, although two sides may change a submodule's commit.
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


def find_meeting_pairs(changed: Mapping[str, Iterable[str]]) -> tuple[list[tuple[str, str]], bool]:
    """Return the pairs that touch the same place, and whether these are all of them.

    A place is a file, or a file where another has a folder. Renames of whole folders can conflict in other ways.
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
            yield from ((name, other) for name in places.get(folder, ()) for other in names if name != other)


def _folders(path: str) -> Iterator[str]:
    at = path.find("/")
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)


@dataclass(frozen=True, slots=True)
class FileOverlap:
    """A file, and the branches that changed it."""

    path: str
    branches: tuple[str, ...]


async def changes(gitdir: Path, base: str, commits: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the files that each branch changed since *base*; *commits* maps branches to commits."""
    return {branch: await list_changed_paths(gitdir, base, commit) for branch, commit in commits.items()}


def overlaps(changed: Mapping[str, Sequence[str]]) -> tuple[FileOverlap, ...]:
    """Return the files that more than one branch changed."""
    branches: dict[str, list[str]] = {}
    for branch, paths in changed.items():
        for path in paths:
            branches.setdefault(path, []).append(branch)
    return tuple(FileOverlap(path, tuple(found)) for path, found in sorted(branches.items()) if len(found) > 1)
