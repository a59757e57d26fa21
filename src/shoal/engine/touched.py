"""Whether a folder is just as we wrote it, told without opening anything in it."""

import os
from pathlib import Path

MOST_ENTRIES = 500

Fingerprint = tuple[tuple[str, int, int, int], ...]


def fingerprint(folder: Path) -> Fingerprint | None:
    """Name, inode, size and change time of every entry; `None` when there are more than ours could be.

    The change time cannot be set by anybody, and folders are opened by descriptor, never through a link.
    """
    found: list[tuple[str, int, int, int]] = []
    for place, folders, files, fd in os.fwalk(folder, follow_symlinks=False):
        for name in sorted((*folders, *files)):
            seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
            found.append((f"{place}/{name}", seen.st_ino, seen.st_size, seen.st_ctime_ns))
        if len(found) > MOST_ENTRIES:
            return None
    return tuple(sorted(found))
