"""Removing what an agent wrote: by a process that follows no link, at any depth, whatever the modes."""

from pathlib import Path

from shoal import proc
from shoal.errors import Broken
from shoal.model.command import Command

TIMEOUT = 600.0


async def removed(*paths: Path) -> None:
    """Remove files and trees, never crossing into another file system."""
    if not await _rm(paths):
        # An ordinary user cannot empty a folder of mode 000, though it is theirs.
        await _run("chmod", "-R", "u+rwX", "--", *map(str, paths))
        if not await _rm(paths):
            raise Broken(f"cannot remove {', '.join(map(str, paths))}; something holds it or it is not yours")


async def _rm(paths: tuple[Path, ...]) -> bool:
    return await _run("rm", "-rf", "--one-file-system", "--", *map(str, paths))


async def _run(*argv: str) -> bool:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
    done = await proc.run(Command(argv=argv, cwd=Path("/"), env=env), timeout=TIMEOUT)
    return done.ok
