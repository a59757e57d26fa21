"""The lock of one repository across processes, for making and removing worktrees and bases."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

from shoal.errors import Broken

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
