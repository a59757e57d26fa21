"""One immutable checkout per commit, made once and kept within a budget."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from shoal.git.repository import inspect
from shoal.workspaces.base_checkouts import base_ready, sweep_bases
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

    await sweep_bases(await inspect(repo, os.environ), tmp_path)

    assert not list(tmp_path.glob("*-*"))


@pytest.mark.parametrize("damage", ["emptied note", "shortened file", "changed file", "missing file"])
async def test_a_damaged_base_is_made_anew(repo: Path, tmp_path: Path, damage: str) -> None:
    found, commit, bases = await inspect(repo, os.environ), git(repo, "rev-parse", "HEAD"), tmp_path / "bases"
    bases.mkdir()
    async with base_ready(found, commit, bases) as base:
        file = base.tree / "d0/f0.txt"
        whole = file.read_text()
    match damage:
        case "emptied note":
            (base.tree.parent / "ready").write_text("")
        case "shortened file":
            file.write_text("")
        case "changed file":
            file.write_text("X" * len(whole))
        case _:
            file.unlink()

    async with base_ready(found, commit, bases) as again:
        assert (again.tree / "d0/f0.txt").read_text() == whole
    assert len(list(bases.iterdir())) == 1


async def test_a_damaged_base_that_agents_use_is_left_to_them(repo: Path, tmp_path: Path) -> None:
    found, commit, bases = await inspect(repo, os.environ), git(repo, "rev-parse", "HEAD"), tmp_path / "bases"
    bases.mkdir()

    async with base_ready(found, commit, bases) as base:
        (base.tree / "d0/f0.txt").write_text("")
        async with base_ready(found, commit, bases) as other:
            assert other.tree != base.tree
            assert (other.tree / "d0/f0.txt").read_text() == (repo / "d0/f0.txt").read_text()
        assert base.tree.is_dir()


if os.geteuid() == 0:  # only root may make a file immutable

    async def test_a_base_that_cannot_be_removed_hinders_nobody(repo: Path, tmp_path: Path) -> None:
        found, commit, bases = await inspect(repo, os.environ), git(repo, "rev-parse", "HEAD"), tmp_path / "bases"
        bases.mkdir()
        async with base_ready(found, commit, bases) as base:
            pass
        file = base.tree / "d0/f0.txt"
        file.write_text("damaged")
        inode = file.stat().st_ino
        subprocess.run(["chattr", "+i", file], check=True)
        try:
            async with base_ready(found, commit, bases) as again:
                assert (again.tree / "d0/f0.txt").read_text() == (repo / "d0/f0.txt").read_text()
            (left,) = await sweep_bases(found, bases)
        finally:
            stuck = next(path for path in bases.rglob("f0.txt") if path.stat().st_ino == inode)
            subprocess.run(["chattr", "-i", stuck], check=True)
        assert left.name.startswith("gone-")
        assert await sweep_bases(found, bases) == []


async def test_a_base_that_is_cancelled_while_it_is_made_leaves_nothing(repo: Path, tmp_path: Path) -> None:
    repository = await inspect(repo, os.environ)
    (tmp_path / "base").mkdir()

    async def make() -> None:
        async with base_ready(repository, git(repo, "rev-parse", "HEAD"), tmp_path / "base"):
            raise AssertionError("it was not cancelled in time")

    making = asyncio.create_task(make())
    while not list((tmp_path / "base").glob("making-*")):
        await asyncio.sleep(0)
    making.cancel()
    await asyncio.wait([making])

    assert making.cancelled()
    assert list((tmp_path / "base").iterdir()) == []
