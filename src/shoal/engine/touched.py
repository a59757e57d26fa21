"""Whether a folder is just as we wrote it, told without opening anything in it."""

import os
from pathlib import Path

MOST_ENTRIES = 500

Fingerprint = tuple[tuple[str, int, int, int], ...]


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
    for place, folders, files, fd in os.fwalk(folder, follow_symlinks=False, onerror=_raise):
        for name in sorted((*folders, *files)):
            seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
            found.append((f"{place}/{name}", seen.st_ino, seen.st_size, seen.st_ctime_ns))
        if len(found) > MOST_ENTRIES:
            return None
    return tuple(sorted(found))


def _raise(error: OSError) -> None:
    raise error
