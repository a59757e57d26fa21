"""What a session may spend, and the watching of it: the first limit that is passed is named."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from shoal.engine.pace import Pace
from shoal.limits.disk import free_floor, used_bytes
from shoal.limits.kind import Group, Usage
from shoal.model.limits import ResourceLimits
from shoal.workspaces.quota import is_full, unwritten_bytes

DISK_SECONDS = 1.0
# A build may run into its pids now and then. A bomb is who is refused at every look for two seconds, or was refused and
# stays at its limit for so long: the shells of bash's bomb wait for seconds before they try again.
PERSISTENT_SECONDS = 1.8
LEAST_LOOKS = 3
# Whoever has spent no time has done nothing; looked at all the same once in a while, for what others may have done.
IDLE_SECONDS = 30.0
CROWDED = 0.9
# An agent may read that its disk is full, think, and make room; who has made none for so long will not.
FULL_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of one session, the group that holds it to them, and where it can write."""

    group: Group
    limits: ResourceLimits
    folders: tuple[Path, ...]
    box: Path
    given_bytes: int = 0
    """What already lay in those folders when the session was opened."""
    disk: Path | None = None
    """The disk of its own that holds them, where the limit of disk is exact."""
    full_seconds: float = FULL_SECONDS
    unread: Callable[[], Awaitable[int]] | None = None
    """Counts what lies in those folders though we may not read it, where that can be done."""
    pace: Pace = field(default_factory=Pace)

    def met(self, *, failed: bool) -> str | None:
        """Name the limit that an ended agent had met: the kernel's own counters say so, or the disk that it left full.

        Who met the end of its disk and made room again has met nothing; who leaves it full, and says that all is
        well, may have lost what it wrote last.
        """
        breach = self.group.breach()
        if breach and (breach == "memory" or failed):
            return breach
        return "disk" if self.fills_its_disk else None

    def is_crowded(self, usage: Usage) -> bool:
        """Say whether it has about as many processes as it may."""
        most = self.limits.pids
        return most is not None and usage.pids is not None and usage.pids >= CROWDED * most

    @property
    def fills_its_disk(self) -> bool:
        """Say whether the agent has a disk of its own, and has filled it."""
        return self.disk is not None and is_full(self.disk, self.limits.disk_bytes or 0)


async def passed(bounds: Bounds, since: float) -> str:
    """Look until a limit is passed for good, and name it; *since* is when the agent was let in."""
    watch = _Watch(bounds, since)
    with bounds.pace.watching():
        while True:
            with bounds.pace.look():
                breach = await watch.look(time.monotonic())
            if breach is not None:
                return breach
            await asyncio.sleep(bounds.pace.seconds)


class _Watch:
    """What was seen of one session so far."""

    def __init__(self, bounds: Bounds, since: float) -> None:
        self._bounds = bounds
        self._spent: float | None = None  # at the last look that went through everything
        self._walked = since
        self._refused = 0
        self._pressed: list[float] = []
        self._full: float | None = None

    async def look(self, now: float) -> str | None:
        """Look once; an agent that has spent no time since, and was in no trouble, has done nothing."""
        spent = self._bounds.group.spent()
        is_idle = spent is not None and spent == self._spent and not self._pressed and self._full is None
        if is_idle and now - self._walked < IDLE_SECONDS:
            return None
        breach = self._processes(now) or self._own_disk(now)
        if breach is None and now - self._walked >= DISK_SECONDS:
            breach = "disk" if await _disk_is_full(self._bounds) else None
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


async def _disk_is_full(bounds: Bounds) -> bool:
    coming = unwritten_bytes(bounds.box.parent) if bounds.disk is not None else 0
    if free_floor(bounds.box, coming_bytes=coming) is not None:
        return True
    if bounds.disk is not None or bounds.limits.disk_bytes is None:
        return False
    most = bounds.limits.disk_bytes + bounds.given_bytes
    used = await used_bytes(*bounds.folders, pids=bounds.group.pids(), most_bytes=most)
    if used.bytes > most:
        return True
    # A folder that its owner may write but not list hides what is in it from an ordinary user.
    return bool(used.unread) and bounds.unread is not None and await bounds.unread() > most


def spelt(limits: ResourceLimits) -> str:
    """Say limits in one line."""
    cpu = "a fair share of cpu" if limits.cpu_percent is None else f"{limits.cpu_percent:g} % cpu"
    exactly = " (exact)" if limits.is_exact else ""
    parts = (
        "no bound of memory" if limits.memory_mb is None else f"{limits.memory_mb:g} MB memory",
        cpu,
        "no bound of time" if limits.time_seconds is None else f"{limits.time_seconds:g} s",
        "no bound of disk" if limits.disk_mb is None else f"{limits.disk_mb:g} MB disk{exactly}",
        "no bound of pids" if limits.pids is None else f"{limits.pids} pids",
    )
    return ", ".join(parts)
