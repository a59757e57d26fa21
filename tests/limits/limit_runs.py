"""Shared by the tests of limits: the available enforcers, a kernel made of plain files, and hogs."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from shoal import proc
from shoal.limits.cgroup1 import cgroup1
from shoal.limits.cgroup2 import cgroup2
from shoal.limits.cgroup_files import CgroupFiles, Hierarchies, find_hierarchies
from shoal.limits.cgroups import Cgroups
from shoal.limits.kind import Enforcer, LimitGroup
from shoal.limits.polling import Polling
from shoal.model.command import Command
from shoal.model.limits import ResourceLimits
from shoal.proc import Completed, Process

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
ROOMY = ResourceLimits(memory_mb=512, cpu_percent=None, pids=500)

MALLOC = "x = bytearray(300 << 20); import signal; signal.pause()"
MEMFD = "import os; f = os.memfd_create('x')\nfor _ in range(300): os.write(f, bytes(1 << 20))"
SHM = """import os, tempfile
f = tempfile.TemporaryFile(dir='/dev/shm')
for _ in range(300): os.write(f.fileno(), bytes(1 << 20))"""
CROWD = "i=0; while [ $i -lt 60 ]; do sleep 60 & i=$((i + 1)); done; wait"


def bomb(enforcer: Enforcer) -> Command:
    """Too many processes: without end where the kernel stops them, else only more than allowed."""
    # Looked at only, a real bomb took this machine to a load of 3,500. dash keeps `:` for itself.
    return shell("b() { b | b & }; b; exec sleep 60" if enforcer.name != "polling" else CROWD)


FRESH = {
    "cgroup.procs": "",
    "cgroup.kill": "",
    "cgroup.subtree_control": "",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
    "memory.peak": "4096",
    "cpu.max": "max 100000",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1",
    "pids.max": "max",
    "pids.events": "max 0",
    "pids.current": "0",
}


class FakeKernel(CgroupFiles):
    """The files of version 2, as a kernel would make them; what its side would write, the test writes."""

    def __init__(self, handed: str = "cpu memory pids") -> None:
        self._handed = (*handed.split(), "cgroup")

    def make(self, folder: Path) -> None:
        super().make(folder)
        for name, content in FRESH.items():
            if name.split(".")[0] in self._handed:
                (folder / name).write_text(content)

    def remove(self, folder: Path) -> bool:
        if self.groups(folder):
            return False
        for name in FRESH:
            (folder / name).unlink(missing_ok=True)
        return super().remove(folder)

    def pids(self, folder: Path) -> list[int]:
        return [pid for pid in super().pids(folder) if pid and Path(f"/proc/{pid}").exists()]


def unified(tmp_path: Path) -> Hierarchies:
    """A hierarchy of version 2: a mount that hands its controllers down, and we in a scope of it."""
    mount = tmp_path / "unified"
    FakeKernel().make(mount)
    FakeKernel().make(mount / "own.scope")
    (mount / "cgroup.subtree_control").write_text("cpu memory pids")
    return Hierarchies(v1={}, v2=mount / "own.scope", mount=mount)


def kernel(fleet: ResourceLimits | None = None) -> Cgroups | None:
    """The kernel's own enforcement, where this user has it."""
    return cgroup2(find_hierarchies(), CgroupFiles(), fleet) or cgroup1(find_hierarchies(), CgroupFiles(), fleet)


LIVE = ["kernel", "polling"] if kernel() else ["polling"]


def live(name: str) -> Enforcer:
    """An enforcer that really holds something."""
    return (kernel() if name == "kernel" else None) or Polling()


def on_files(tmp_path: Path) -> Cgroups:
    """Version 2 on a plain file tree."""
    enforcer = cgroup2(unified(tmp_path), FakeKernel())
    assert enforcer is not None
    return enforcer


def shell(script: str, **env: str) -> Command:
    return Command(argv=("/bin/sh", "-c", script), cwd=Path("/"), env={**ENV, **env})


def python(script: str) -> Command:
    return Command(argv=(sys.executable, "-I", "-S", "-c", script), cwd=Path("/"), env=ENV)


async def ran(group: LimitGroup, command: Command) -> Completed:
    return await proc.run(group.wrap(command), timeout=20)


@contextlib.asynccontextmanager
async def running(group: LimitGroup, command: Command) -> AsyncIterator[Process]:
    """Start *command* in the group; at the end both are killed, whichever can."""
    async with proc.open_process(group.wrap(command), sink=lambda _stream, _chunk: None, grace=0) as process:
        try:
            yield process
        finally:
            group.kill()


async def until(claim: Callable[[], object], timeout: float = 15) -> None:
    """Wait until *claim* holds: the kernel's counters can be read, but nobody tells when they change."""
    end = time.monotonic() + timeout
    while not claim():
        assert time.monotonic() < end, "it never came to hold"
        await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Say whether a process runs: one that waits to be buried does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return False
