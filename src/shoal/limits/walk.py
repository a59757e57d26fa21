"""A walk through files that an agent may be changing meanwhile: any depth, few descriptors, no link followed."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ENTRY_BYTES = 512  # an inode and its name, which st_blocks leaves out: 10**7 empty files are 5 GB, too
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Used:
    """What was found; *unread* folders could not be looked into."""

    bytes: int = 0
    entries: int = 0
    unread: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _Identity:
    device: int
    inode: int


class Tally:
    """Adds up, each file once however many names it has."""

    def __init__(self) -> None:
        self.unread = 0
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
        self._bytes += found.st_blocks * 512

    def used(self, *, is_whole: bool = False) -> Used:
        """Give the sum."""
        return Used(self._bytes, self._entries, self.unread, is_whole)


@dataclass(slots=True)
class _Folder:
    """A folder on the way down, with the names of those below it that are still to be seen."""

    name: str
    identity: _Identity
    below: list[str] = field(default_factory=list)


def walked(root: Path, tally: Tally) -> Iterator[None]:
    """Count all below *root* on its own file system, and pause after each entry."""
    with contextlib.closing(_Descent(root, tally)) as descent:
        yield from descent.steps()


def open_files(pids: Iterable[int], tally: Tally) -> Iterator[None]:
    """Count the files that have no name any more but are held open by *pids*, and pause after each descriptor."""
    for pid in pids:
        for link in _links(pid):
            with contextlib.suppress(OSError):
                found = os.stat(link)  # noqa: PTH116 - leads to the open file itself, by no path of the agent's
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                    tally.add(found)
            yield


class _Descent:
    """Stands in one folder at a time, by its descriptor; the way back up is `..`, if it is still the way we came."""

    def __init__(self, root: Path, tally: Tally) -> None:
        self._root = root
        self._tally = tally
        self._fd = -1
        self._trail: list[_Folder] = []

    def close(self) -> None:
        """Let the descriptor go."""
        self._stand(-1)

    def steps(self) -> Iterator[None]:
        """Go through everything."""
        if self._enter(str(self._root), None):
            yield from self._listed()
        while self._trail:
            if not self._trail[-1].below:
                yield from self._left()
            elif self._enter(self._trail[-1].below.pop(), self._fd):
                yield from self._listed()

    def _enter(self, name: str, parent: int | None) -> bool:
        try:
            fd = os.open(name, FOLDER, dir_fd=parent)
        except FileNotFoundError:
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

    def _listed(self) -> Iterator[None]:
        below = self._trail[-1].below
        with os.scandir(self._fd) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    self._tally.add(entry.stat(follow_symlinks=False))
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                yield

    def _left(self) -> Iterator[None]:
        """Go up; where an agent has moved the folder under us, come down again from the root."""
        self._trail.pop()
        if not self._trail:
            return
        above = self._opened("..", self._fd, self._trail[-1].identity)
        if above is not None:
            self._stand(above)
            yield
            return
        trail, self._trail = self._trail, []
        parent: int | None = None
        for folder in trail:
            fd = self._opened(folder.name, parent, folder.identity)
            if fd is None:
                return
            self._stand(fd)
            self._trail.append(folder)
            parent = fd
            yield

    def _opened(self, name: str, parent: int | None, identity: _Identity) -> int | None:
        """Open a folder if it is the one we know."""
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
