"""Spare session directories: unchanged ones, kept while a run lives for its next sessions."""

import contextlib
import fcntl
import itertools
import os
import secrets
from collections import defaultdict
from collections.abc import Hashable
from pathlib import Path

from shoal.workspaces.mount import list_mounts, unmount
from shoal.workspaces.overlay import unmount_overlay

MOST = 256
BEGINNING = "spare-"
Contents = dict[str, bytes]
"""The content of a spare's files, by name."""
WORKSPACE, WORKER = "workspace", "worker_0"
MOUNTED = f"{WORKSPACE}/{WORKER}"
"""Where a spare contains the workspace that stayed mounted."""


class Spares:
    """The spares of one run, below *folder*, by their reuse key.

    No other Shoal removes them while we hold the lock; the first that finds it free does. A kill frees it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: Path | None = None
        self._lock = -1
        self._count = 0
        self._kept: defaultdict[Hashable, list[tuple[str, Contents]]] = defaultdict(list)

    def keep_spare(self, path: Path, use: Hashable, contents: Contents) -> bool:
        """Keep *path* for the next session with the same *use*; `False` if there are enough."""
        if self._count >= MOST:
            return False
        with contextlib.suppress(OSError):
            place = f"{self._open()}/{self._count}-{path.name}"
            os.rename(path, place)  # noqa: PTH104 - half the time of Path.rename
            self._kept[use].append((place, contents))
            self._count += 1
            return True
        return False

    def take(self, path: Path, use: Hashable) -> Contents | None:
        """Turn a spare into *path*, and return what was written into its files; `None` if there is none."""
        while places := self._kept.get(use):
            self._count -= 1
            place, contents = places.pop()
            with contextlib.suppress(OSError):
                os.rename(place, path)  # noqa: PTH104
                return contents
        return None

    def close(self) -> None:
        """Release all spares to the trash."""
        for place, _ in itertools.chain.from_iterable(self._kept.values()):
            if os.path.exists(f"{place}/{MOUNTED}"):  # noqa: PTH110
                unmount_overlay(Path(place, MOUNTED))
        self._kept.clear()
        self._count, self._own = MOST, None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _open(self) -> Path:
        if self._own is None:
            self._own, self._lock = _make_locked_folder(self._folder)
        return self._own


def claim_abandoned(path: Path) -> Path | None:
    """Return what can be removed of *path*, an entry of the trash; `None` for the spares of a live run.

    A dead run's spares are renamed under their lock: nobody can start to use what is about to be removed.
    """
    if not path.name.startswith(BEGINNING):
        return path
    with contextlib.suppress(OSError):  # another Shoal was faster
        lock = _try_lock(path)
        if lock is not None:
            try:
                for place in list_mounts(path):
                    unmount(place)
                return path.rename(path.with_name(f"gone-{secrets.token_hex(4)}"))
            finally:
                os.close(lock)
    return None


def _make_locked_folder(folder: Path) -> tuple[Path, int]:
    """Make a folder and lock it; retry if the trash was emptied in between."""
    while True:
        place = folder / f"{BEGINNING}{secrets.token_hex(4)}"
        place.mkdir(mode=0o700, parents=True)
        with contextlib.suppress(FileNotFoundError):
            lock = _try_lock(place)
            if lock is not None and place.exists():
                return place, lock
            if lock is not None:
                os.close(lock)


def _try_lock(path: Path) -> int | None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
