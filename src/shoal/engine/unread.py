"""How much an agent keeps in folders that its own user may not read: counted in a box that may."""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from shoal.engine.behind import boxed
from shoal.engine.lease import SYSTEM_PATH
from shoal.engine.site import Site
from shoal.errors import ShoalError
from shoal.model.command import Command
from shoal.proc import Stream

SECONDS = 30.0


def counter(site: Site, folders: tuple[Path, ...]) -> Callable[[], Awaitable[int]] | None:
    """Give what counts all bytes below *folders*; `None` where no box can read more than we can."""
    if not site.sandbox.mounts:
        return None

    async def counted() -> int:
        try:
            async with asyncio.timeout(SECONDS):
                return await _counted(site, folders)
        except (ShoalError, OSError, TimeoutError):
            return 0

    return counted


async def _counted(site: Site, folders: tuple[Path, ...]) -> int:
    said = bytearray()

    def feed(stream: Stream, data: bytes) -> None:
        if stream is Stream.STDOUT:
            said.extend(data[:1000])

    words = ("du", "--summarize", "--total", "--block-size=1", "--one-file-system", "--", *map(str, folders))
    # Only the last line, which is the sum: the others begin with the folders' names.
    argv = ("/bin/sh", "-c", '"$@" 2>/dev/null | tail -n 1', "sh", *words)
    env = {"PATH": ":".join(SYSTEM_PATH), "LC_ALL": "C"}
    policy = site.policy(token=secrets.token_hex(8), read=folders, write=())
    policy = replace(policy, uid=os.getuid(), gid=os.getgid(), capabilities=("CAP_DAC_READ_SEARCH",))
    async with boxed(site.sandbox, Command(argv=argv, cwd=Path("/"), env=env), policy, sink=feed) as box:
        await box.wait()
    number = bytes(said).partition(b"\t")[0]
    return int(number) if number.isdigit() else 0
