"""Layers of set-up: made once, held while in use, complete or absent; and files copied without following links."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from shoal.errors import BadInput, SetupFailed
from shoal.workspaces import setup_layers as setup_files
from shoal.workspaces.setup_layers import TREE, content, copy_files, digest, evict_setup, hold_layer


class Maker:
    """Makes layers of so many bytes, and counts."""

    def __init__(self, size: int = 10) -> None:
        self.made = 0
        self.size = size

    async def __call__(self, aside: Path) -> bool:
        self.made += 1
        await asyncio.sleep(0)
        (aside / TREE).mkdir()
        (aside / TREE / "file").write_bytes(b"x" * self.size)
        return True


async def used(setups: Path, key: str, make: Maker, budget: int = 2**30) -> bool:
    async with hold_layer(setups, key, make, asyncio.Event(), budget=budget) as layer:
        return layer is not None and (layer / TREE / "file").exists()


async def test_many_that_start_at_once_wait_for_one(tmp_path: Path) -> None:
    make = Maker()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(used(tmp_path / "setup", "a", make)) for _ in range(5)]

    assert all(task.result() for task in tasks)
    assert make.made == 1


async def test_who_waited_for_one_that_fails_has_failed_too_and_who_comes_later_tries_again(tmp_path: Path) -> None:
    tried = 0

    async def failing(aside: Path) -> bool:
        nonlocal tried
        tried += 1
        (aside / "half").touch()
        await asyncio.sleep(0.05)
        raise SetupFailed("setup failed: no")

    async def one() -> None:
        with pytest.raises(SetupFailed, match="no"):
            async with hold_layer(tmp_path / "setup", "a", failing, asyncio.Event()):
                pass

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(one())
    await one()

    assert tried == 2
    assert await used(tmp_path / "setup", "a", Maker())


async def test_told_to_stop_nobody_waits_on(tmp_path: Path) -> None:
    stop, inside = asyncio.Event(), asyncio.Event()

    async def slow(aside: Path) -> bool:
        inside.set()
        await stop.wait()
        return False

    async def waiting() -> Path | None:
        await inside.wait()
        async with hold_layer(tmp_path / "setup", "a", Maker(), stop) as layer:
            return layer

    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(waiting())
        async with asyncio.TaskGroup() as inner:
            maker = inner.create_task(_layer(tmp_path / "setup", slow, stop))
            await inside.wait()
            stop.set()

    assert maker.result() is None
    assert waiter.result() is None
    assert list((tmp_path / "setup").glob("*/ready")) == []


async def _layer(setups: Path, make: object, stop: asyncio.Event) -> Path | None:
    async with hold_layer(setups, "a", make, stop) as layer:  # type: ignore[arg-type]
        return layer


async def test_the_longest_unused_go_when_there_is_too_much_and_those_in_use_stay(tmp_path: Path) -> None:
    setups, make = tmp_path / "setup", Maker(100_000)

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(hold_layer(setups, "held", make, asyncio.Event()))
        await used(setups, "old", make)
        await used(setups, "new", make, budget=250_000)
        left = {path.parent.name for path in setups.glob("*/ready")}
        assert await evict_setup(setups / "held") == 0

    assert left == {"held", "new"}
    assert await evict_setup(setups / "held") > 0


async def test_one_that_goes_meanwhile_or_was_cut_off_is_no_hindrance(tmp_path: Path) -> None:
    setups = tmp_path / "setup"
    for name in ("gone", "cut"):
        (setups / name).mkdir(parents=True)
    (setups / "gone/ready").symlink_to("nowhere")
    (setups / "cut/ready").touch()

    assert await used(setups, "a", Maker(), budget=0)


async def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    setups = tmp_path / "setup"
    for name in ("making-a", "making-b"):
        (setups / name / "tree").mkdir(parents=True)
        (setups / name / "tree" / "half").touch()

    assert await used(setups, "a", Maker())
    assert list(setups.glob("making-*")) == []
    assert [path.name for path in (setups / "a" / TREE).iterdir()] == ["file"]


def test_files_are_copied_through_no_link_on_either_side(tmp_path: Path) -> None:
    source, target, outside = tmp_path / "source", tmp_path / "target", tmp_path / "outside"
    for folder in (source / "real", target, outside):
        folder.mkdir(parents=True)
    (outside / "secret").write_text("s")
    (source / "real/file").write_text("f")
    (source / "linked").symlink_to(outside)
    (source / "link").symlink_to(outside / "secret")
    (target / "taken").symlink_to(outside / "secret")
    (source / "taken").write_text("t")

    names = ["real/file", "linked/secret", "link", "taken", "absent", "real"]
    assert copy_files(source, target, names) == ("real/file", "taken")
    assert (target / "taken").read_text() == "t"
    assert not (target / "taken").is_symlink()
    assert (outside / "secret").read_text() == "s"
    assert content(source, "link", 100) is None
    (target / "real/file").unlink()
    (target / "real").rmdir()
    (target / "real").symlink_to(outside)
    with pytest.raises(BadInput, match=r"real/file.*cannot be laid"):
        copy_files(source, target, ["real/file"])
    assert not (outside / "file").exists()


def test_copying_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "target").mkdir()
    for name in "ab":
        (tmp_path / name).write_text("12345")
    monkeypatch.setattr(setup_files, "MAX_BYTES", 9)

    with pytest.raises(BadInput, match="names more than"):
        copy_files(tmp_path, tmp_path / "target", ["a", "b"])


def test_a_digest_names_contents_and_modes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    seen = [digest(tmp_path, ["a"])]
    (tmp_path / "a").write_text("2")
    seen.append(digest(tmp_path, ["a"]))
    (tmp_path / "a").chmod(0o755)
    seen.append(digest(tmp_path, ["a"]))

    assert len(set(seen)) == 3
