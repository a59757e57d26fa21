"""A process that outlives Shoal: when Shoal dies, it ends all processes in our groups and namespaces."""

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from shoal import proc
from shoal.limits.kind import Enforcer
from shoal.model.command import Command, OpenInput
from shoal.proc.namespace import Namespace

WATCHER = Path(__file__).with_name("watcher.py")


class Guard:
    """The watching process; *has_groups* says whether it also ends the processes in our control groups."""

    def __init__(self, process: proc.Process, *, has_groups: bool) -> None:
        self._process = process
        self.has_groups = has_groups

    async def watch(self, namespace: Namespace) -> None:
        """End *namespace* when we die; one that has ended is dropped automatically."""
        if (began := namespace.began()) is not None:
            with contextlib.suppress(BrokenPipeError):  # the guard was killed: namespaces still end with us
                await self._process.write(f"{namespace.pid} {began}\n".encode())


@contextlib.asynccontextmanager
async def open_guard(enforcer: Enforcer | None) -> AsyncIterator[Guard]:
    """Run a guard until the block ends; it also ends the processes in the control groups of *enforcer*."""
    folders = () if enforcer is None else enforcer.folders
    argv = (sys.executable, "-I", "-S", str(WATCHER), str(os.getpid()), *map(str, folders))
    # Its input ends when we do: the kernel closes our end, however we end.
    command = Command(argv=argv, cwd=Path("/"), stdin=OpenInput())
    async with proc.open_process(command, sink=lambda _stream, _data: None, grace=0.0) as process:
        yield Guard(process, has_groups=bool(folders))
