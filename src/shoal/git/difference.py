"""What differs between two commits; by plumbing, which no configuration of the user's can turn into something else."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.errors import Broken
from shoal.git.run import git

MOST_BYTES = 2**30
SAFE = ("-r", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all")


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file, and how many lines were added and deleted; `None` for a binary one."""

    path: str
    added: int | None
    deleted: int | None

    def as_fields(self) -> dict[str, object]:
        """Give the fields by their names."""
        return asdict(self)


async def patch(gitdir: Path, base: str, commit: str, form: str = "--patch") -> bytes:
    """Give the difference, whole; *form* is `--patch`, `--stat` or `--name-only`."""
    whole = ("--binary", "--full-index") if form == "--patch" else ()
    done = await git(gitdir, "diff-tree", *SAFE, form, *whole, base, commit, limit=MOST_BYTES)
    if done.dropped:
        raise Broken(f"the difference is larger than {MOST_BYTES // 2**20} MiB; look at it with git itself")
    return done.stdout


async def changed_paths(gitdir: Path, base: str, commit: str) -> tuple[str, ...]:
    """Name the files that differ."""
    done = await git(gitdir, "diff-tree", *SAFE, "-z", "--no-renames", "--name-only", base, commit, limit=MOST_BYTES)
    if done.dropped:
        raise Broken("more files differ than can be looked at; look at them with git itself")
    return tuple(done.stdout.decode(errors="surrogateescape").split("\0")[:-1])


async def changed_files(gitdir: Path, base: str, commit: str) -> tuple[ChangedFile, ...]:
    """List the files that differ."""
    done = await git(gitdir, "diff-tree", *SAFE, "-z", "--no-renames", "--numstat", base, commit, limit=MOST_BYTES)
    return tuple(_files(done.stdout.decode(errors="surrogateescape")))


def _files(listed: str) -> Iterator[ChangedFile]:
    for entry in listed.split("\0")[:-1]:
        added, deleted, path = entry.split("\t", 2)
        yield ChangedFile(path, _lines(added), _lines(deleted))


def _lines(number: str) -> int | None:
    return int(number) if number.isdigit() else None
