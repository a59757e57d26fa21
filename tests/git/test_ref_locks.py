"""Refs locked by another git are waited for, and the locks never removed."""

import asyncio
import os
from pathlib import Path

from shoal.git.refs import ABSENT, Move, move, value
from shoal.git.repository import inspect
from tests.conftest import git


async def test_a_packed_refs_lock_of_another_git_is_waited_for(repo: Path) -> None:
    found = await inspect(repo, os.environ)
    head = git(repo, "rev-parse", "main")
    git(repo, "branch", "x")
    git(repo, "pack-refs", "--all")
    lock = repo / ".git/packed-refs.lock"
    lock.touch()

    async with asyncio.TaskGroup() as group:
        moving = group.create_task(move(found, [Move("refs/heads/x", ABSENT, head)]))
        done, _ = await asyncio.wait([moving], timeout=2)  # git itself gives up after one second
        assert not done
        assert lock.exists()
        lock.unlink()

    assert moving.result()
    assert await value(found, "refs/heads/x") is None
