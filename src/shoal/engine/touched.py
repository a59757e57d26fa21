"""Whether a folder is just as we wrote it, told without opening anything in it."""

import os
from collections.abc import Iterable
from pathlib import Path

MOST_ENTRIES = 500
DEEPEST = 32  # of what we write, nothing lies deeper than refs do; and each level costs a descriptor
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Fingerprint = tuple[tuple[str, int, int, int], ...]
Stamp = tuple[int, int, int]


def fingerprint(folder: Path) -> Fingerprint | None:
    """Name, inode, size and change time of every entry; `None` when there are more than ours could be.

    The change time cannot be set by anybody, and folders are opened by descriptor, never through a link.
    """
    try:
        return _entries(folder)
    except OSError:  # it was taken away while we looked, or cannot be looked at: then it is not as we wrote it
        return None


def _entries(folder: Path) -> Fingerprint | None:
    found: list[tuple[str, int, int, int]] = []
    top = os.open(folder, FOLDER)
    try:
        _look(top, "", found)
    except _TooMany:
        return None
    finally:
        os.close(top)
    return tuple(sorted(found))


def stamps(folder: Path, names: Iterable[str]) -> dict[str, Stamp] | None:
    """Inode, size and change time of each of *names* below *folder*; `None` where one is not to be had.

    With every folder on the way to a place among them, a link in its stead shows as another folder.
    """
    beginning = f"{folder}/"
    found: dict[str, Stamp] = {}
    try:
        for name in names:
            seen = os.lstat(beginning + name)
            found[name] = (seen.st_ino, seen.st_size, seen.st_ctime_ns)
    except OSError:
        return None
    return found


def has_attributes(folder: Path) -> bool:
    """Say whether *folder* or one below it has extended attributes other than the system's own, or cannot be told."""
    try:
        return _any_attributes(folder)
    except OSError:
        return True


def _any_attributes(folder: Path) -> bool:
    rest = [str(folder)]
    while rest:
        place = rest.pop()
        fd = os.open(place, FOLDER)
        try:
            if any(not name.startswith("security.") for name in os.listxattr(fd)):
                return True
            with os.scandir(fd) as entries:
                rest += [f"{place}/{entry.name}" for entry in entries if entry.is_dir(follow_symlinks=False)]
        finally:
            os.close(fd)
    return False


class _TooMany(Exception):
    """There is more than we wrote."""


def _look(fd: int, place: str, found: list[tuple[str, int, int, int]]) -> None:
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(found) >= MOST_ENTRIES or place.count("/") > DEEPEST:
                raise _TooMany
            seen = entry.stat(follow_symlinks=False)
            found.append((f"{place}/{entry.name}", seen.st_ino, seen.st_size, seen.st_ctime_ns))
            if entry.is_dir(follow_symlinks=False):
                _look_below(fd, place, entry.name, found)


def _look_below(fd: int, place: str, name: str, found: list[tuple[str, int, int, int]]) -> None:
    below = os.open(name, FOLDER, dir_fd=fd)
    try:
        _look(below, f"{place}/{name}", found)
    finally:
        os.close(below)
