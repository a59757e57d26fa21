"""Disk use: counted as the disk counts it, whatever an agent does to the tree."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from shoal.limits.disk import ENTRY_BYTES, FILE_BYTES, SizeCounter, measure_disk, measure_in_slices, walk


async def test_files_are_counted_as_the_disk_has_them(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/full").write_bytes(os.urandom(1 << 20))
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 3 << 30)
    (tmp_path / "twin").hardlink_to(tmp_path / "a/b/full")
    (tmp_path / "out").symlink_to("/usr")
    os.mkfifo(tmp_path / "fifo")

    used = await measure_disk(tmp_path)

    assert 1 << 20 <= used.bytes < (1 << 20) + 100_000
    assert (used.entries, used.unread, used.is_whole) == (7, 0, True)
    assert (await measure_disk(tmp_path, tmp_path / "missing")).bytes == used.bytes


async def test_an_empty_file_is_not_nothing(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).touch()

    assert (await measure_disk(tmp_path)).bytes == 100 * (ENTRY_BYTES + FILE_BYTES)


async def test_a_file_without_a_name_counts_while_it_is_open(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        (tmp_path / "x").unlink()

        assert (await measure_disk(tmp_path)).bytes < 100_000
        assert (await measure_disk(tmp_path, pids=(os.getpid(), 2**22))).bytes >= 1 << 20


async def test_any_depth_is_walked_with_few_descriptors(tmp_path: Path) -> None:
    """3,000 folders deep, each with a second one beside it, so that the way back up is gone every time."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        for name in ("d", "e"):
            os.mkdir(name, dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    before = len(os.listdir("/proc/self/fd"))

    seen = [(used, len(os.listdir("/proc/self/fd"))) for used in measure_in_slices(tmp_path)]
    subprocess.run(["rm", "-rf", "--", tmp_path / "d"], check=True)  # pytest cannot: shutil recurses

    assert (seen[-1][0].entries, seen[-1][0].is_whole) == (6000, True)
    assert max(most for _, most in seen) - before <= 3


async def test_a_walk_never_holds_the_loop_up(tmp_path: Path) -> None:
    for number in range(5000):
        (tmp_path / str(number)).touch()

    shares = []
    for _ in range(5):
        began = time.thread_time()
        with contextlib.closing(measure_in_slices(tmp_path)) as steps:
            next(steps)
            shares.append(time.thread_time() - began)

    assert min(shares) < 0.01
    assert (await measure_disk(tmp_path, most_entries=10)).entries <= 5000
    assert (await measure_disk(tmp_path, most_bytes=10)).bytes > 10


def test_a_folder_that_is_moved_under_the_walk_does_not_lead_it_out(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "a/b/c/d").mkdir(parents=True)
    (top / "a/x").mkdir()
    (top / "z").mkdir()
    (tmp_path / "beside").mkdir()
    for number in range(50):
        (tmp_path / "beside" / str(number)).touch()
    tally = SizeCounter()

    steps = walk(top, tally)
    for _ in steps:
        if (top / "a/b/c").exists() and tally.total().entries == 6:
            (top / "a/b/c").rename(top / "moved")

    assert (top / "moved").exists()
    assert tally.total().entries <= 9
    assert tally.total().lost == 0, "it stood in it"


@pytest.mark.parametrize("name", ["file", "folder"])
def test_what_is_renamed_under_the_walk_is_said_to_be_lost(tmp_path: Path, name: str) -> None:
    """What was listed and has another name when it is looked at may be anything."""
    for number in range(2):
        (tmp_path / f"folder{number}").mkdir()
        (tmp_path / f"file{number}").touch()
    tally = SizeCounter()

    for number, _ in enumerate(walk(tmp_path, tally)):
        if number == 0:
            for found in list(tmp_path.glob(f"{name}*")):
                found.rename(tmp_path / f"renamed-{found.name}")

    assert tally.total().lost > 0


async def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut/file").touch()
    (tmp_path / "shut").chmod(0)

    used = await measure_disk(tmp_path)
    (tmp_path / "shut").chmod(0o700)

    assert used.unread == (0 if os.geteuid() == 0 else 1)
