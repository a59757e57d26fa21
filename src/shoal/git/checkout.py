"""Check out a commit without any filter, hook or driver, and lock a repository while that is done."""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from shoal.errors import Broken
from shoal.git.gitdir import write_gitdir
from shoal.git.run import git
from shoal.model.repository import Repository

# Entries as old as the index itself are hashed again at each status ("racily clean"); git compares seconds.
SETTLED_SECONDS = 5


async def check_out(repository: Repository, commit: str, *, tree: Path, index: Path, shadow: Path) -> int:
    """Fill *tree* with the files of *commit*, write *index* with their stat data, and return how many there are.

    *shadow* is a folder for the gitdir that does it; it must not exist. A tree with an earlier commit (and its index)
    is updated by the differences.
    """
    write_gitdir(shadow, repository, head=commit, refs={}, index=None, lenders=repository.lenders, loose_stat=False)
    is_fresh = not index.exists()
    env = {"GIT_WORK_TREE": str(tree), "GIT_INDEX_FILE": str(index)}
    await git(shadow, "read-tree", "--reset", "-u", commit, env=env)
    listed = await git(shadow, "ls-files", "-z", env=env, limit=2**30)
    names = listed.stdout.split(b"\0")[:-1]
    if is_fresh:
        _settle(tree, names)
        await git(shadow, "update-index", "-q", "--refresh", env=env, accept=(0, 1))
    return len(names)


def _settle(tree: Path, names: list[bytes]) -> None:
    """Date the files back a little, so that the index trusts their stat data from the first status on."""
    then = int(time.time()) - SETTLED_SECONDS
    root = os.fsencode(tree) + b"/"
    for name in names:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.utime(root + name, (then, then), follow_symlinks=False)


# Unlocked, 16-24 of 100 parallel `git worktree add` fail (git 2.39), and a prune can remove a half-made one.
WAIT_SECONDS = 120.0


@contextlib.asynccontextmanager
async def repository_locked(git: Path, *, seconds: float = WAIT_SECONDS) -> AsyncIterator[None]:
    """Hold the repository's lock: a flock on its gitdir, so that no lock file exists and a kill frees it."""
    fd = os.open(git, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        await _acquire(fd, git, seconds)
        yield
    finally:
        os.close(fd)


async def _acquire(fd: int, git: Path, seconds: float) -> None:
    pause = 0.001
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, 0.02)
                else:
                    return
    raise Broken(f"the lock of {git} was not free for {seconds:.0f} s; another Shoal may hang there")
