"""Watch what a session uses, and name the first limit that it exceeds."""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.databases.session_database import SessionDatabase
from shoal.errors import ShoalError
from shoal.limits.kind import LimitGroup, ResourceUsage
from shoal.model.command import Command
from shoal.model.limits import ResourceLimits
from shoal.proc import Stream
from shoal.proc.free_space import FreeSpace, free_floor, room
from shoal.sessions.clocks import PollInterval, WorkClock
from shoal.sessions.context import RunContext
from shoal.sessions.disk_use import Allowance, DiskUse
from shoal.sessions.host_disk import DiskWriter, HostDiskWatch
from shoal.sessions.resource_meter import Record, ResourceMeter
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.session_dir import SYSTEM_PATH
from shoal.workspaces.quota import is_full, unwritten_bytes

DISK_SECONDS = 1.0
# A build may hit its pids limit now and then. A bomb is refused forks at every poll for two seconds, or was refused
# and stays at its limit for that long: the shells of bash's fork bomb wait for seconds before they try again.
PERSISTENT_SECONDS = 1.8
LEAST_LOOKS = 3
# A session that used no CPU has done nothing; it is still polled now and then, for what others may have done to it.
IDLE_SECONDS = 30.0
CROWDED = 0.9
# An agent may notice that its disk is full, think, and free space; after this time it will not.
FULL_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBounds:
    """The limits of one session, the group that enforces them, and where it can write."""

    group: LimitGroup
    limits: ResourceLimits
    folders: tuple[Path, ...]
    session_dir: Path
    given_bytes: int = 0
    """The bytes in those folders when the session was opened."""
    disk: Path | None = None
    """Its own disk that holds them, with `disk: exact`."""
    full_seconds: float = FULL_SECONDS
    unread: Callable[[], Awaitable[int]] | None = None
    """Counts what is in those folders although we may not read it, where that is possible."""
    database: SessionDatabase | None = None
    """What it has on a database server, which does not work in its group."""
    clock: WorkClock = field(default_factory=WorkClock)
    """Counts the agent's time, except while it is frozen."""
    pace: PollInterval = field(default_factory=PollInterval)
    floor: HostDiskWatch = field(default_factory=HostDiskWatch)
    meter: ResourceMeter = field(default_factory=ResourceMeter)
    record: Record = lambda sample: None
    """Records a sample of what the session uses."""
    at_start: FreeSpace | None = None
    """The free space of the host's disk before the agent could write."""

    def find_reached_limit(self, *, failed: bool) -> str | None:
        """Name the limit that an ended agent reached, from the kernel's counters or because it left its disk full.

        An agent that filled its disk and freed space again reached no limit. If it leaves the disk full and reports
        success, it may have lost its last writes.
        """
        breach = self.group.breach()
        if breach and (breach == "memory" or failed):
            return breach
        return "disk" if self.fills_its_disk or (self.database is not None and self.database.is_full) else None

    def is_crowded(self, usage: ResourceUsage) -> bool:
        """Return whether it has nearly as many processes as it may have."""
        most = self.limits.pids
        return most is not None and usage.pids is not None and usage.pids >= CROWDED * most

    @property
    def fills_its_disk(self) -> bool:
        """Return whether the agent has its own disk and filled it."""
        return self.disk is not None and is_full(self.disk, self.limits.disk_bytes or 0)


async def wait_for_breach(bounds: SessionBounds, since: float, tenant: DiskWriter | None = None) -> str:
    """Poll until a limit is exceeded for good, and name it; *since* is when the agent started.

    *tenant* receives the number of files that the session has.
    """
    watch = _LimitWatch(bounds, since, tenant or DiskWriter(bounds.group))
    with bounds.pace.watching():
        while True:
            with bounds.pace.look():
                bounds.meter.look(now := time.monotonic(), bounds.pace.watched, bounds.record)
                breach = await watch.look(now)
            if breach is not None:
                return breach
            await asyncio.sleep(bounds.pace.seconds)


class _LimitWatch:
    """What is known about one session so far."""

    def __init__(self, bounds: SessionBounds, since: float, tenant: DiskWriter) -> None:
        self._bounds = bounds
        self._tenant = tenant
        self._use = _disk_use(bounds)
        self._spent: float | None = None  # at the last full poll
        self._walked = since
        self._refused = 0
        self._pressed: list[float] = []
        self._full: float | None = None

    async def look(self, now: float) -> str | None:
        """Poll once; an agent that used no CPU since, and had no problem, has done nothing."""
        if self._bounds.database is not None and self._bounds.database.is_full:
            return "disk"
        spent = self._bounds.group.cpu_seconds()
        is_idle = spent is not None and spent == self._spent and not self._pressed and self._full is None
        if is_idle and now - self._walked < IDLE_SECONDS:
            return None
        breach = self._processes(now) or self._own_disk(now)
        is_due = now - self._walked >= DISK_SECONDS or (self._use is not None and self._use.is_doubtful)
        if breach is None and is_due:
            breach = "disk" if await self._disk_is_full() else None
            self._spent, self._walked = spent, time.monotonic()
        return breach

    def _processes(self, now: float) -> str | None:
        group = self._bounds.group
        usage = group.usage()
        refused = usage.forks_refused
        breach = group.breach()
        if breach == "memory" or (breach == "pids" and refused is None):
            return breach
        if refused is None or not (refused > self._refused or (refused > 0 and self._bounds.is_crowded(usage))):
            self._pressed = []
            return None
        self._refused = refused
        self._pressed.append(now)
        is_bomb = len(self._pressed) >= LEAST_LOOKS and now - self._pressed[0] >= PERSISTENT_SECONDS
        return "pids" if is_bomb else None

    def _own_disk(self, now: float) -> str | None:
        if not self._bounds.fills_its_disk:
            self._full = None
        elif self._full is None:
            self._full = now
        return "disk" if self._full is not None and now - self._full > self._bounds.full_seconds else None

    async def _disk_is_full(self) -> bool:
        bounds = self._bounds
        if bounds.disk is not None:  # data that is still in memory is on no disk that `HostDiskWatch` sees
            return free_floor(bounds.session_dir, coming_bytes=unwritten_bytes(bounds.session_dir.parent)) is not None
        if self._use is None:
            return False
        is_over = await self._use.is_over()
        self._tenant.entries = self._use.entries
        bounds.meter.note_disk(max(0, self._use.bytes - bounds.given_bytes))
        return is_over


def _disk_use(bounds: SessionBounds) -> DiskUse | None:
    """Return what counts a session's files; an exact disk needs none."""
    if bounds.disk is not None or bounds.limits.disk_bytes is None:
        return None
    allowed = Allowance(
        folders=bounds.folders,
        most_bytes=bounds.limits.disk_bytes + bounds.given_bytes,
        group=bounds.group,
        unread=bounds.unread,
    )
    return DiskUse(allowed, bounds.at_start or room(bounds.session_dir))


def describe_limits(limits: ResourceLimits) -> str:
    """Describe limits in one line."""
    cpu = "a fair share of cpu" if limits.cpu_percent is None else f"{limits.cpu_percent:g} % cpu"
    exactly = " (exact)" if limits.is_exact else ""
    parts = (
        "no memory limit" if limits.memory_mb is None else f"{limits.memory_mb:g} MB memory",
        cpu,
        "no time limit" if limits.time_seconds is None else f"{limits.time_seconds:g} s",
        "no disk limit" if limits.disk_mb is None else f"{limits.disk_mb:g} MB disk{exactly}",
        "no pids limit" if limits.pids is None else f"{limits.pids} pids",
    )
    return ", ".join(parts)


SECONDS = 30.0


def counter(context: RunContext, folders: tuple[Path, ...]) -> Callable[[], Awaitable[int]] | None:
    """Return what counts all bytes below *folders*; `None` if no sandbox can read more than we can."""
    if not context.sandbox.mounts:
        return None

    async def count() -> int:
        try:
            async with asyncio.timeout(SECONDS):
                return await _count(context, folders)
        except (ShoalError, OSError, TimeoutError):
            return 0

    return count


async def _count(context: RunContext, folders: tuple[Path, ...]) -> int:
    output = bytearray()

    def feed(stream: Stream, data: bytes) -> None:
        if stream is Stream.STDOUT:
            output.extend(data[:1000])

    words = ("du", "--summarize", "--total", "--block-size=1", "--one-file-system", "--", *map(str, folders))
    # Only the last line, which is the total: the others begin with the folders' names.
    argv = ("/bin/sh", "-c", '"$@" 2>/dev/null | tail -n 1', "sh", *words)
    env = {"PATH": ":".join(SYSTEM_PATH), "LC_ALL": "C"}
    policy = context.policy(token=secrets.token_hex(8), read=folders, write=())
    policy = replace(policy, uid=os.getuid(), gid=os.getgid(), capabilities=("CAP_DAC_READ_SEARCH",))
    async with open_sandboxed(
        context.sandbox, Command(argv=argv, cwd=Path("/"), env=env), policy, sink=feed
    ) as sandboxed:
        await sandboxed.wait()
    number = bytes(output).partition(b"\t")[0]
    return int(number) if number.isdigit() else 0
