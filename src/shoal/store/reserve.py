"""Disk space that is reserved, so that the ledger and recovery can be written on a full disk."""

import contextlib
import os
from pathlib import Path

RESERVE_BYTES = 8 * 2**20
RESERVE_PART = 16
RESERVE_INODES = 16


def make_reserve(path: Path) -> int:
    """Reserve space for the ledger and for recovery, if there is enough; return how many bytes are missing."""
    disk = os.statvfs(path.parent)
    wanted = min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVE_PART)
    with contextlib.suppress(OSError):
        if path.exists():
            return 0
        if disk.f_bavail * disk.f_frsize >= 2 * wanted:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, wanted)
            return 0
    return wanted


def release_if_full(path: Path) -> None:
    """Release the reserved space if a command could not even start without it."""
    disk = os.statvfs(path.parent)
    is_out_of_inodes = disk.f_files > 0 and disk.f_favail < RESERVE_INODES
    if disk.f_bavail * disk.f_frsize < RESERVE_BYTES // 2 or is_out_of_inodes:
        release_reserve(path)


def release_reserve(path: Path) -> bool:
    """Release the reserved space; `False` if there is none."""
    try:
        size = path.stat().st_size
        path.unlink()
    except OSError:
        return False
    return size > 0
