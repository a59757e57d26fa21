"""Merging commits beside every checkout, in a gitdir of ours: no driver, filter or hook of anybody's is known there."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.git.gitdir import write_gitdir
from shoal.git.run import git
from shoal.model.repository import Repository


@dataclass(frozen=True, slots=True)
class Merged:
    """A commit that holds both sides; no ref holds it yet."""

    commit: str


@dataclass(frozen=True, slots=True)
class Conflicted:
    """The files that a person has to look at."""

    paths: tuple[str, ...]


async def merged(repository: Repository, ours: str, theirs: str, message: str) -> Merged | Conflicted:
    """Merge *theirs* into *ours*; a side that holds the other already is the answer itself."""
    with _shadow(repository) as shadow:
        env = {"GIT_OBJECT_DIRECTORY": str(repository.git / "objects")}
        for inner, outer in ((theirs, ours), (ours, theirs)):
            done = await git(shadow, "merge-base", "--is-ancestor", inner, outer, env=env, accept=(0, 1))
            if done.ok:
                return Merged(outer)
        wanted = ("--write-tree", "--name-only", "--no-messages", "-z")
        tried = await git(shadow, "merge-tree", *wanted, ours, theirs, env=env, accept=(0, 1))
        tree, *paths = tried.stdout.decode(errors="surrogateescape").split("\0")[:-1]
        if not tried.ok:
            return Conflicted(tuple(paths))
        parents = ("-p", ours, "-p", theirs)
        made = await git(shadow, "commit-tree", tree, *parents, env=env, stdin=message.encode())
        return Merged(made.stdout.decode().strip())


async def combined(repository: Repository, commits: Sequence[str], message: str) -> Merged | Conflicted:
    """Merge *commits* one after the other, in their order; the first conflict is the answer."""
    whole = commits[0]
    for commit in commits[1:]:
        match await merged(repository, whole, commit, message):
            case Merged(commit=whole):
                continue
            case Conflicted() as conflict:
                return conflict
    return Merged(whole)


@contextlib.contextmanager
def _shadow(repository: Repository) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="shoal-merge-"))
    try:
        write_gitdir(folder / "git", repository, head="ref: refs/heads/none", refs={}, index=None, loose_stat=False)
        yield folder / "git"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
