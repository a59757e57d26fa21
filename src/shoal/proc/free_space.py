"""The host's free disk space: how much must stay free, and how Shoal's own work ends before that."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Broken

FLOOR_BYTES = 2 * 2**30
FLOOR_INODES = 100_000
FLOOR_PART = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSpace:
    """The free space of a disk, and how much must stay free; disks with dynamic inodes have no inode limit."""

    free_bytes: int
    floor_bytes: int
    free_inodes: int
    floor_inodes: int

    @property
    def spare_bytes(self) -> int:
        """How many bytes may still be used."""
        return self.free_bytes - self.floor_bytes

    @property
    def spare_inodes(self) -> int:
        """How many files may still be created."""
        return self.free_inodes - self.floor_inodes


def room(path: Path, *, coming_bytes: int = 0, part: float = 1.0) -> FreeSpace:
    """Read the free space on the disk of *path*; *coming_bytes* were written but have yet to arrive there.

    2 GiB and 100,000 inodes stay free; on a small disk 5 % of it, because 5 % of a large one would be more than many
    people ever have free. *part* is the share of that reserve that counts.
    """
    disk = os.statvfs(path)
    return FreeSpace(
        free_bytes=disk.f_bavail * disk.f_frsize - coming_bytes,
        floor_bytes=int(part * min(FLOOR_BYTES, disk.f_blocks * disk.f_frsize * FLOOR_PART)),
        free_inodes=disk.f_favail if disk.f_files else sys.maxsize,
        floor_inodes=int(part * min(FLOOR_INODES, disk.f_files * FLOOR_PART)),
    )


def free_floor(path: Path, *, coming_bytes: int = 0, part: float = 1.0) -> str | None:
    """Return that the disk of *path* is too full for agents to continue, or `None`."""
    disk = room(path, coming_bytes=coming_bytes, part=part)
    if disk.spare_bytes < 0:
        free, floor = max(0, disk.free_bytes) / 2**20, disk.floor_bytes / 2**20
        return f"only {free:.0f} MB are free on the disk of {path}, and {floor:.0f} MB must stay free"
    if disk.spare_inodes < 0:
        free, floor = disk.free_inodes, disk.floor_inodes
        return f"only {free} more files fit on the disk of {path} (inodes), and room for {floor} must stay free"
    return None


FASTEST_BYTES, FASTEST_INODES = (
    8 * 2**30,
    800_000,
)  # per second: more than any machine writes, so that no check is too late
SHORTEST, LONGEST = 0.005, 1.0
OWN_PART = 0.5


def pause(now: FreeSpace) -> float:
    """Return a pause in which even the fastest writer fills at most half of the spare space."""
    least = min(now.spare_bytes / FASTEST_BYTES, now.spare_inodes / FASTEST_INODES)
    return min(LONGEST, max(SHORTEST, least))


class DiskFull(Broken):
    """Shoal's own work was ended before it filled the host's disk."""


@contextlib.asynccontextmanager
async def above_floor(place: Path) -> AsyncIterator[None]:
    """Watch the disk of *place*: cancel the block and raise `DiskFull` if less than half of the reserve is free.

    Agents are ended at the reserve, and then their work still has to be kept. The size of a commit does not tell how
    much disk it takes: attributes make files longer.
    """
    loop = asyncio.get_running_loop()
    short: str | None = None
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal short, timer
        short = free_floor(place, part=OWN_PART)
        if short is not None:
            bound.reschedule(loop.time())
        else:
            timer = loop.call_later(pause(room(place, part=OWN_PART)), look)

    try:
        async with asyncio.timeout(None) as bound:
            look()
            yield
    except TimeoutError:
        if short is None:
            raise
        raise DiskFull(f"{short}; free some space, or run `shoal clean`") from None
    finally:
        if timer is not None:
            timer.cancel()
