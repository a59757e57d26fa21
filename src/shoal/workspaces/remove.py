"""Remove what an agent wrote, at any depth and whatever the modes, without following links."""

import asyncio
import contextlib
import os
import secrets
from pathlib import Path

from shoal import proc
from shoal.errors import Broken
from shoal.model.command import Command
from shoal.workspaces.spares import Spares, claim_abandoned

TIMEOUT = 600.0
GATHERING_SECONDS = 0.2


class Trash:
    """A trash folder: things are moved there at once, and removed in the background.

    On some disks each removed entry takes 0.2 ms, which a session should not wait for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thrown = asyncio.Event()
        self.spares = Spares(folder)

    def throw(self, path: Path | str) -> None:
        """Move *path* to the trash, if it exists."""
        target = f"{self._folder}/{os.path.basename(path)}-{secrets.token_hex(4)}"  # noqa: PTH119
        try:
            os.rename(path, target)  # noqa: PTH104 - half the time of Path.rename
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, target)  # noqa: PTH104
        self._thrown.set()

    async def empty(self) -> None:
        """Remove everything in the trash, also what an earlier Shoal left."""
        self._thrown.clear()
        there = list(self._folder.iterdir()) if self._folder.is_dir() else []
        left = [gone for path in there if (gone := claim_abandoned(path)) is not None]
        # What cannot be removed now is tried again by the next Shoal; no result depends on it.
        with contextlib.suppress(Broken, TimeoutError):
            if left:
                await remove_all(*left)

    async def keep_empty(self) -> None:
        """Keep removing what is thrown away, until cancelled."""
        while True:
            await self._thrown.wait()
            await asyncio.sleep(GATHERING_SECONDS)  # one process removes what many sessions threw away
            await self.empty()


async def remove_all(*paths: Path) -> None:
    """Remove files and trees, never crossing into another file system."""
    if not await _rm(paths):
        # An ordinary user cannot empty a folder of mode 000, though it is theirs.
        await _run("chmod", "-R", "u+rwX", "--", *map(str, paths))
        if not await _rm(paths):
            raise Broken(f"cannot remove {', '.join(map(str, paths))}; it is in use, or belongs to another user")


async def clear_privileges(*paths: Path) -> None:
    """Clear setuid and setgid bits of an ended agent's files, which stay and may be owned by root."""
    there = [str(path) for path in paths if os.path.lexists(path)]
    chmod = ("-execdir", "chmod", "ug-s", "--", "{}", "+")
    if there and not await _run("find", "-P", *there, "-xdev", "-type", "f", "-perm", "/6000", *chmod):
        # A folder of mode 000 keeps an ordinary user's find out, and nobody else gets in either.
        await _run("chmod", "go-rwx", "--", *there)


async def _rm(paths: tuple[Path, ...]) -> bool:
    return await _run("rm", "-rf", "--one-file-system", "--", *map(str, paths))


async def _run(*argv: str) -> bool:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
    done = await proc.run(Command(argv=argv, cwd=Path("/"), env=env), timeout=TIMEOUT)
    return done.ok
