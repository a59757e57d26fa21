"""One immutable checkout per commit, made once and kept within a budget."""

import asyncio
import os
from pathlib import Path

from shoal.git.repository import inspect
from shoal.workspaces.base import base_ready, swept
from tests.conftest import git


async def test_a_base_is_made_once_for_all(repo: Path, tmp_path: Path) -> None:
    found, commit, bases = await inspect(repo, os.environ), git(repo, "rev-parse", "HEAD"), tmp_path / "bases"
    bases.mkdir()

    async def made() -> int:
        async with base_ready(found, commit, bases) as base:
            assert (base.tree / "d0/f0.txt").read_text() == (repo / "d0/f0.txt").read_text()
            assert base.files == 6
            return base.tree.stat().st_ino

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(made()) for _ in range(8)]

    assert len({task.result() for task in tasks}) == 1
    assert len(list(bases.iterdir())) == 1


async def test_no_filter_or_hook_runs_and_line_endings_are_the_repositorys(repo: Path, tmp_path: Path) -> None:
    canary, bases = tmp_path / "canary", tmp_path / "bases"
    bases.mkdir()
    (repo / ".gitattributes").write_text("*.txt filter=evil\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "attributes")
    git(repo, "config", "filter.evil.smudge", f"touch {canary}; cat")
    git(repo, "config", "filter.evil.required", "true")
    git(repo, "config", "core.autocrlf", "true")
    (repo / ".git/hooks/post-checkout").write_text(f"#!/bin/sh\ntouch {canary}\n")
    (repo / ".git/hooks/post-checkout").chmod(0o755)

    async with base_ready(await inspect(repo, os.environ), git(repo, "rev-parse", "HEAD"), bases) as base:
        assert (base.tree / "README.md").read_bytes() == b"scratch\r\n"
    assert not canary.exists()


async def test_the_longest_unused_base_goes_when_the_budget_is_spent_but_none_in_use(
    repo: Path, tmp_path: Path
) -> None:
    found, bases = await inspect(repo, os.environ), tmp_path / "bases"
    bases.mkdir()
    commits = []
    for number in range(3):
        git(repo, "commit", "-q", "--allow-empty", "-m", str(number))
        commits.append(git(repo, "rev-parse", "HEAD"))

    async with base_ready(found, commits[0], bases) as first:
        async with base_ready(found, commits[1], bases, budget=0) as second:
            pass
        async with base_ready(found, commits[2], bases, budget=0):
            assert first.tree.exists()
            assert not second.tree.exists()


async def test_what_a_kill_left_half_made_is_swept(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "making-1/tree").mkdir(parents=True)
    (tmp_path / "gone-2").mkdir()

    await swept(await inspect(repo, os.environ), tmp_path)

    assert not list(tmp_path.glob("*-*"))
