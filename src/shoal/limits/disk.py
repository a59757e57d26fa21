"""How much disk an agent has used: walked by descriptors, following nothing, a few milliseconds at a time."""

import asyncio
import contextlib
import os
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from shoal.limits.walk import Tally, Used, open_files, walked

SLICE = 0.005
REST = 0.01
FLOOR_BYTES = 2 * 2**30
FLOOR_PART = 0.05


async def used_bytes(
    *folders: Path, pids: Iterable[int] = (), most_entries: int | None = None, most_bytes: int | None = None
) -> Used:
    """Add up what lies below *folders* and what *pids* hold open without a name, resting after each slice.

    Past *most_entries* or *most_bytes* it gives what it has so far, which is then not whole.
    """
    used = Used()
    with contextlib.closing(measured(*folders, pids=pids)) as steps:
        for used in steps:
            if used.is_whole or _is_past(used.entries, most_entries) or _is_past(used.bytes, most_bytes):
                break
            await asyncio.sleep(REST)
    return used


def measured(*folders: Path, pids: Iterable[int] = ()) -> Generator[Used, None, None]:
    """Give the sum so far after each slice of 5 ms, and at last the whole."""
    tally = Tally()
    due = time.monotonic() + SLICE
    for _ in _steps(folders, pids, tally):
        if time.monotonic() >= due:
            yield tally.used()
            due = time.monotonic() + SLICE
    yield tally.used(is_whole=True)


def free_floor(path: Path, *, coming_bytes: int = 0) -> str | None:
    """Say that the disk of *path* is too full for any agent to go on, or `None`.

    *coming_bytes* are those that were written already and that the disk has yet to take.
    The floor is 2 GiB, on a small disk 5 % of it: 5 % of a large one would be more than many people ever have free.
    """
    disk = os.statvfs(path)
    free, size = disk.f_bavail * disk.f_frsize - coming_bytes, disk.f_blocks * disk.f_frsize
    floor = min(FLOOR_BYTES, int(size * FLOOR_PART))
    if free >= floor:
        return None
    return f"only {free / 2**20:.0f} MB are free on the disk of {path}, and {floor / 2**20:.0f} MB must stay free"


def _steps(folders: Iterable[Path], pids: Iterable[int], tally: Tally) -> Iterator[None]:
    for folder in folders:
        yield from walked(folder, tally)
    yield from open_files(pids, tally)


def _is_past(value: int, most: int | None) -> bool:
    return most is not None and value > most
