"""Measure an agent's disk use: walk by descriptors, follow no links, and yield every few milliseconds."""

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ENTRY_BYTES = 512  # a name and its inode, which st_blocks leaves out
# The least that a file takes besides its name: inodes are limited too, and an exact disk has one per block.
FILE_BYTES = 7 * 512
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The result of a walk; *unread* folders could not be opened, and *lost* entries had disappeared."""

    bytes: int = 0
    entries: int = 0
    unread: int = 0
    lost: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _Identity:
    device: int
    inode: int


class SizeCounter:
    """Adds up sizes, counting each file once however many links it has."""

    def __init__(self) -> None:
        self.unread = 0
        self.lost = 0
        self._bytes = 0
        self._entries = 0
        self._linked: set[_Identity] = set()

    def add(self, found: os.stat_result) -> None:
        """Count one entry."""
        self._entries += 1
        self._bytes += ENTRY_BYTES
        if found.st_nlink != 1 and not stat.S_ISDIR(found.st_mode):
            identity = _identity(found)
            if identity in self._linked:
                return
            self._linked.add(identity)
        self._bytes += max(found.st_blocks * 512, FILE_BYTES)

    def total(self, *, is_whole: bool = False) -> DiskUsage:
        """Return the sum."""
        return DiskUsage(self._bytes, self._entries, self.unread, self.lost, is_whole)


@dataclass(slots=True)
class _Folder:
    """A folder on the way down, with the subfolders that are still to be visited."""

    name: str
    identity: _Identity
    below: list[str] = field(default_factory=list)


def walk(root: Path, tally: SizeCounter) -> Iterator[None]:
    """Count everything below *root* on its file system, and pause after each entry."""
    with contextlib.closing(_Descent(root, tally)) as descent:
        yield from descent.steps()


def open_files(pids: Iterable[int], tally: SizeCounter) -> Iterator[None]:
    """Count the deleted files that *pids* still hold open, and pause after each descriptor."""
    for pid in pids:
        for link in _links(pid):
            with contextlib.suppress(OSError):
                found = os.stat(link)  # noqa: PTH116 - leads to the open file itself, by no path of the agent's
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                    tally.add(found)
            yield


class _Descent:
    """Opens one folder at a time; it goes back up by `..`, if that is still the parent."""

    def __init__(self, root: Path, tally: SizeCounter) -> None:
        self._root = root
        self._tally = tally
        self._fd = -1
        self._trail: list[_Folder] = []

    def close(self) -> None:
        """Close the descriptor."""
        self._stand(-1)

    def steps(self) -> Iterator[None]:
        """Visit every entry."""
        if self._enter(str(self._root), None):
            yield from self._list_folder()
        while self._trail:
            if not self._trail[-1].below:
                yield from self._go_up()
            elif self._enter(self._trail[-1].below.pop(), self._fd):
                yield from self._list_folder()

    def _enter(self, name: str, parent: int | None) -> bool:
        try:
            fd = os.open(name, FOLDER, dir_fd=parent)
        except FileNotFoundError:
            self._tally.lost += parent is not None
            return False
        except OSError:
            self._tally.unread += 1
            return False
        identity = _identity(os.fstat(fd))
        if self._trail and identity.device != self._trail[0].identity.device:
            os.close(fd)
            return False
        self._stand(fd)
        self._trail.append(_Folder(name, identity))
        return True

    def _list_folder(self) -> Iterator[None]:
        below = self._trail[-1].below
        with os.scandir(self._fd) as entries:
            for entry in entries:
                try:
                    self._tally.add(entry.stat(follow_symlinks=False))
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                except OSError:
                    self._tally.lost += 1
                yield

    def _go_up(self) -> Iterator[None]:
        """Go up; if the agent has moved the folder meanwhile, come down again from the root."""
        self._trail.pop()
        if not self._trail:
            return
        above = self._open_folder("..", self._fd, self._trail[-1].identity)
        if above is not None:
            self._stand(above)
            yield
            return
        trail, self._trail = self._trail, []
        parent: int | None = None
        for folder in trail:
            fd = self._open_folder(folder.name, parent, folder.identity)
            if fd is None:
                self._tally.lost += 1
                return
            self._stand(fd)
            self._trail.append(folder)
            parent = fd
            yield

    def _open_folder(self, name: str, parent: int | None, identity: _Identity) -> int | None:
        """Open a folder if it is still the same one."""
        with contextlib.suppress(OSError):
            fd = os.open(name, FOLDER, dir_fd=parent)
            if _identity(os.fstat(fd)) == identity:
                return fd
            os.close(fd)
        return None

    def _stand(self, fd: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd


def _identity(found: os.stat_result) -> _Identity:
    return _Identity(found.st_dev, found.st_ino)


def _links(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    return []


SLICE = 0.005
REST = 0.01


async def measure_disk(
    *folders: Path,
    pids: Iterable[int] = (),
    most_entries: int | None = None,
    most_bytes: int | None = None,
    rest: float = REST,
) -> DiskUsage:
    """Add up what lies below *folders* and what *pids* hold open without a name, resting after each slice.

    Past *most_entries* or *most_bytes* it gives what it has so far, which is then not whole.
    """
    used = DiskUsage()
    with contextlib.closing(measure_in_slices(*folders, pids=pids)) as steps:
        for used in steps:
            if used.is_whole or _is_past(used.entries, most_entries) or _is_past(used.bytes, most_bytes):
                break
            await asyncio.sleep(rest)
    return used


def measure_in_slices(*folders: Path, pids: Iterable[int] = ()) -> Generator[DiskUsage, None, None]:
    """Yield the sum so far after each slice of 5 ms, and the whole at the end."""
    tally = SizeCounter()
    due = time.monotonic() + SLICE
    for _ in _steps(folders, pids, tally):
        if time.monotonic() >= due:
            yield tally.total()
            due = time.monotonic() + SLICE
    yield tally.total(is_whole=True)


def _steps(folders: Iterable[Path], pids: Iterable[int], tally: SizeCounter) -> Iterator[None]:
    for folder in folders:
        yield from walk(folder, tally)
    yield from open_files(pids, tally)


def _is_past(value: int, most: int | None) -> bool:
    return most is not None and value > most
