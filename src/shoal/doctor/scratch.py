"""Scratch folders of the doctor's: gone at its end, and those of a killed one at the next one's start."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from shoal.errors import Broken
from shoal.limits.fleet import Fleet, is_orphan
from shoal.workspaces.mount import list_mounts, unmount
from shoal.workspaces.remove import remove_all

MARK = "-doctor-"
SHORT = Path("/tmp")  # noqa: S108 - for sockets, whose paths may not be long; names in it cannot be guessed


@contextlib.asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """Make a folder named after its owner, so that it is recognised as an orphan if the owner was killed."""
    for place in {Path(tempfile.gettempdir()), SHORT}:
        await _swept(place)
    folder = Path(tempfile.mkdtemp(prefix=prefix())).resolve()
    try:
        yield folder
    finally:
        await _clear(folder)


def prefix() -> str:
    """Return how the names of this process's folders begin."""
    return f"{Fleet.ours().name}{MARK}"


async def _swept(place: Path) -> None:
    for folder in place.glob(f"shoal-*{MARK}*"):
        owner, _, _ = folder.name.partition(MARK)
        if is_orphan(owner) and folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
            with contextlib.suppress(Broken):  # the next one tries again; nothing here depends on it
                await _clear(folder)


async def _clear(folder: Path) -> None:
    for mount in list_mounts(folder.resolve()):
        unmount(mount)
    await remove_all(folder)
