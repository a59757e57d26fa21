"""The objects that sandboxes of a base may read: all that it reaches, nothing else, collected once and extended."""

import asyncio
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from shoal.errors import BadRepository
from shoal.git.repository import inspect
from shoal.workspaces import object_stores
from shoal.workspaces.object_stores import evict_store, objects_ready, sweep_stores
from tests.conftest import git


def listed(repo: Path, store: Path) -> set[str]:
    """All objects of a store, wherever they lie in it."""
    wanted = ("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    return set(git(repo, *wanted, GIT_OBJECT_DIRECTORY=str(store)).split())


def reachable(repo: Path, commit: str) -> set[str]:
    return set(git(repo, "rev-list", "--objects", "--no-object-names", commit, GIT_NO_REPLACE_OBJECTS="1").split())


def committed(repo: Path, text: str) -> str:
    (repo / "README.md").write_text(text)
    git(repo, "commit", "-qam", text)
    return git(repo, "rev-parse", "HEAD")


def long_history(repo: Path, commits: int) -> None:
    """Put so many commits on `main`, by one process."""
    lines = []
    for number in range(commits):
        start = "from refs/heads/main^0\n" if number == 0 else ""
        date = f"committer Ada <ada@example.org> {1700000000 + number} +0000\n"
        text = f"{number}\n" * 50
        lines.append(f"commit refs/heads/main\n{date}data 1\nx\n{start}M 100644 inline f\ndata {len(text)}\n{text}\n")
    subprocess.run(["git", "fast-import", "--quiet"], cwd=repo, input="".join(lines).encode(), check=True)


def packs(store: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (store / "pack").glob("*.pack")}


async def test_a_store_has_what_its_base_reaches_and_nothing_else(repo: Path, tmp_path: Path) -> None:
    first = committed(repo, "first\n")
    (repo / "README.md").write_text("SECRET of the stash\n")
    git(repo, "stash")
    second = committed(repo, "second\n")
    found, stores = await inspect(repo, os.environ), tmp_path / "objects"

    async with objects_ready(found, first, stores) as before, objects_ready(found, second, stores) as after:
        assert listed(repo, before) == reachable(repo, first)
        assert listed(repo, after) == reachable(repo, second)
        assert packs(before).items() <= packs(after).items(), "an ancestor's packs are linked, not copied"
        assert len(packs(after)) == 2
    assert not list(repo.glob(".git/objects/pack/tmp_*"))


async def test_a_branch_from_an_older_commit_takes_over_only_the_parts_before_it(repo: Path, tmp_path: Path) -> None:
    long_history(repo, 150)
    git(repo, "branch", "side", "main~120")
    git(repo, "checkout", "-q", "-f", "side")
    side = committed(repo, "side\n")
    main, later = git(repo, "rev-parse", "main"), git(repo, "rev-parse", "main~50")
    found, stores = await inspect(repo, os.environ), tmp_path / "objects"

    async with (
        objects_ready(found, main, stores) as whole,
        objects_ready(found, later, stores) as fork,
        objects_ready(found, side, stores) as old,
    ):
        assert listed(repo, fork) == reachable(repo, later)
        assert len(packs(fork).items() & packs(whole).items()) == 1
        assert listed(repo, old) == reachable(repo, side)


async def test_many_small_packs_become_one(repo: Path, tmp_path: Path) -> None:
    found, stores = await inspect(repo, os.environ), tmp_path / "objects"

    for number in range(object_stores.MAX_PACKS + 4):
        commit = committed(repo, f"{number}\n")
        async with objects_ready(found, commit, stores) as store:
            assert len(packs(store)) <= object_stores.MAX_PACKS
            assert listed(repo, store) == reachable(repo, commit)


async def test_one_store_is_made_for_all_who_ask_at_once(repo: Path, tmp_path: Path) -> None:
    found, commit, stores = await inspect(repo, os.environ), git(repo, "rev-parse", "HEAD"), tmp_path / "objects"

    async def made() -> int:
        async with objects_ready(found, commit, stores) as store:
            return store.stat().st_ino

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(made()) for _ in range(6)]

    assert len({task.result() for task in tasks}) == 1
    assert [path.name for path in stores.iterdir()] == [commit]


async def test_what_a_kill_or_a_power_failure_left_is_made_again(repo: Path, tmp_path: Path) -> None:
    found, commit, stores = await inspect(repo, os.environ), git(repo, "rev-parse", "HEAD"), tmp_path / "objects"
    (stores / "making-1/objects/pack").mkdir(parents=True)
    (stores / commit / "objects/pack").mkdir(parents=True)
    (stores / commit / "ready").touch()

    await sweep_stores(stores)
    async with objects_ready(found, commit, stores) as store:
        assert listed(repo, store) == reachable(repo, commit)
    assert not list(stores.glob("making-*"))


async def test_the_longest_unused_store_goes_but_none_in_use(repo: Path, tmp_path: Path) -> None:
    found, stores = await inspect(repo, os.environ), tmp_path / "objects"
    commits = [committed(repo, f"{number}\n") for number in range(3)]

    async with objects_ready(found, commits[0], stores) as first:
        async with objects_ready(found, commits[1], stores):
            pass
        async with objects_ready(found, commits[2], stores, budget=0) as third:
            await evict_store(third.parent)
            assert {path.name for path in stores.iterdir()} == {commits[0], commits[2]}
            assert listed(repo, first) == reachable(repo, commits[0])


async def test_history_that_was_fetched_since_is_whole(repo: Path, tmp_path: Path) -> None:
    committed(repo, "second\n")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repo}", "clone")
    clone, stores = tmp_path / "clone", tmp_path / "objects"
    commit = git(clone, "rev-parse", "HEAD")

    async with objects_ready(await inspect(clone, os.environ), commit, stores) as store:
        assert listed(clone, store) == reachable(clone, commit)
    git(clone, "fetch", "-q", "--unshallow")
    later = committed(clone, "third\n")
    async with objects_ready(await inspect(clone, os.environ), later, stores) as store:
        assert listed(clone, store) == reachable(repo, "main") | reachable(clone, later)


async def test_files_that_a_partial_clone_fetched_since_are_there(repo: Path, tmp_path: Path) -> None:
    base, text = git(repo, "rev-parse", "HEAD"), (repo / "README.md").read_text()
    committed(repo, "second\n")
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{repo}", "clone")
    clone, stores = tmp_path / "clone", tmp_path / "objects"
    second = git(clone, "rev-parse", "HEAD")
    old = git(repo, "rev-parse", f"{base}:README.md")

    async with objects_ready(await inspect(clone, os.environ), second, stores) as store:
        assert old not in listed(clone, store)
        assert list((store / "pack").glob("*.promisor"))
    git(clone, "show", f"{base}:README.md")
    third = committed(clone, text)
    async with objects_ready(await inspect(clone, os.environ), third, stores) as store:
        assert old in listed(clone, store)


async def test_replaced_and_grafted_history_is_read_as_it_is(repo: Path, tmp_path: Path) -> None:
    first, second = git(repo, "rev-parse", "HEAD"), committed(repo, "second\n")
    secret = git(repo, "commit-tree", "HEAD^{tree}", "-m", "SECRET")
    git(repo, "replace", first, secret)
    (repo / ".git/info/grafts").write_text(f"{second} {secret}\n")

    async with objects_ready(await inspect(repo, os.environ), second, tmp_path / "objects") as store:
        assert secret not in listed(repo, store)
        assert {first, second} <= listed(repo, store)


async def test_a_broken_history_is_refused_by_name_and_leaves_nothing(repo: Path, tmp_path: Path) -> None:
    first, second = git(repo, "rev-parse", "HEAD"), committed(repo, "second\n")
    (repo / ".git/objects" / first[:2] / first[2:]).unlink()

    with pytest.raises(BadRepository, match=f"the history of {second[:10]} is not whole"):
        async with objects_ready(await inspect(repo, os.environ), second, tmp_path / "objects"):
            pass
    assert not list((tmp_path / "objects").iterdir())


async def test_a_person_is_told_when_it_takes_long(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_stores, "SOON_SECONDS", 0)
    found, commit, stores = await inspect(repo, os.environ), committed(repo, "second\n"), tmp_path / "objects"
    stores.mkdir()
    busy = os.open(stores, os.O_RDONLY)
    fcntl.flock(busy, fcntl.LOCK_EX)
    heard: list[int] = []

    def hear(commits: int) -> None:
        heard.append(commits)
        os.close(busy)  # whoever made another store is done

    async with objects_ready(found, commit, stores, on_gather=hear):
        assert heard == [2]
