"""Space and inodes that are reserved, so that the ledger can be written and Shoal can clean up on a full disk."""

import contextlib
import os
import shutil
from pathlib import Path

RESERVE_BYTES = 8 * 2**20
RESERVE_INODES = 256
RESERVE_PART = 16
INODES_PART = 32  # less than what agents must leave free, so that no agent starts in what was released
PLENTY_INODES = 100_000
FEW_INODES = 64
"""With fewer, a command cannot start, or not bring an agent's work in."""


def make_reserve(path: Path) -> int:
    """Reserve space for the ledger and for recovery, if there is enough; return how many bytes are missing."""
    disk = os.statvfs(path.parent)
    _reserve_inodes(_inodes_of(path), disk)
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
    """Release what is reserved if a command could not even start without it."""
    disk = os.statvfs(path.parent)
    is_out_of_inodes = disk.f_files > 0 and disk.f_favail < FEW_INODES
    if disk.f_bavail * disk.f_frsize < RESERVE_BYTES // 2 or is_out_of_inodes:
        release_reserve(path)


def release_reserve(path: Path) -> bool:
    """Release what is reserved; `False` if there is none."""
    has_inodes = _inodes_of(path).is_dir()
    shutil.rmtree(_inodes_of(path), ignore_errors=True)
    try:
        size = path.stat().st_size
        path.unlink()
    except OSError:
        return has_inodes
    return size > 0 or has_inodes


def _inodes_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.files")


def _reserve_inodes(folder: Path, disk: os.statvfs_result) -> None:
    """Reserve inodes as empty files, on a disk that has a fixed number of them, once it runs short."""
    wanted = min(RESERVE_INODES, disk.f_files // INODES_PART)
    is_plenty = disk.f_files == 0 or disk.f_favail > PLENTY_INODES
    if is_plenty or disk.f_favail < 2 * wanted or folder.is_dir():
        return
    with contextlib.suppress(OSError):
        folder.mkdir()
        for number in range(wanted):
            (folder / str(number)).touch()
