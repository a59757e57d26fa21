"""A process that outlives us: whatever kills us, it ends everybody in our groups."""

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from shoal import proc
from shoal.limits.cgroups import Cgroups
from shoal.limits.kind import Enforcer
from shoal.model.command import Command, Live

WATCHER = Path(__file__).with_name("watcher.py")


@contextlib.asynccontextmanager
async def guarded(enforcer: Enforcer | None) -> AsyncIterator[bool]:
    """Have the groups of *enforcer* watched until leaving; `False` where it has none that a kernel knows."""
    if not isinstance(enforcer, Cgroups):
        yield False
        return
    argv = (sys.executable, "-I", "-S", str(WATCHER), str(os.getpid()), *map(str, enforcer.folders))
    # Its input ends with us: the kernel closes our end of it, however we go.
    command = Command(argv=argv, cwd=Path("/"), stdin=Live())
    async with proc.started(command, sink=lambda _stream, _data: None, grace=0.0):
        yield True
