"""The reserve of a disk: reported when it is reached, and our own work ends before it is used."""

import asyncio
import os
from pathlib import Path

import pytest

from shoal.proc.free_space import DiskFull, above_floor, free_floor


def test_the_floor_is_told_when_it_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    assert free_floor(tmp_path) is None

    full = os.statvfs_result((4096, 4096, 2**28, 2**10, 2**10, *disk[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)

    assert free_floor(tmp_path) == f"only 4 MB are free on the disk of {tmp_path}, and 2048 MB must stay free"


@pytest.mark.parametrize(("inodes", "free", "is_short"), [(60_000, 2999, True), (60_000, 3000, False), (0, 0, False)])
def test_inodes_have_a_floor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inodes: int, free: int, is_short: bool
) -> None:
    """A file system without a fixed number of inodes says that it has none."""
    full = os.statvfs_result((4096, 4096, 2**28, 2**27, 2**27, inodes, free, free, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)

    said = free_floor(tmp_path)

    assert said == (
        f"only 2999 more files fit on the disk of {tmp_path} (inodes), and room for 3000 must stay free"
        if is_short
        else None
    )


async def test_work_ends_when_the_floor_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, free = os.statvfs(tmp_path), [10**6]
    monkeypatch.setattr(
        os, "statvfs", lambda _path: os.statvfs_result((4096, 4096, 2**28, free[0], free[0], *disk[5:]))
    )

    with pytest.raises(DiskFull, match=r"only 4 MB are free .* and 1024 MB must stay free; free some space"):
        async with above_floor(tmp_path):
            free[0] = 1024
            await asyncio.Event().wait()


async def test_half_of_the_floor_is_for_our_own_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent was ended at the floor, and its files are still to be kept."""
    disk = os.statvfs(tmp_path)
    low = os.statvfs_result((4096, 4096, 2**28, 2**18 + 1, 2**18 + 1, *disk[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: low)

    async with above_floor(tmp_path):
        assert free_floor(tmp_path) is not None


async def test_a_timeout_of_the_work_itself_is_no_full_disk(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        async with above_floor(tmp_path), asyncio.timeout(0):
            await asyncio.Event().wait()
