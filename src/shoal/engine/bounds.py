"""What a session may spend, and the watching of it: the first limit that is passed is named."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from shoal.limits.disk import free_floor, used_bytes
from shoal.limits.kind import Group
from shoal.model.limits import ResourceLimits

LOOK_SECONDS = 0.2
LOOKS_PER_DISK = 5
# A build may run into its pids now and then; who is refused at every look for two seconds is a bomb.
PERSISTENT_LOOKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of one session, the group that holds it to them, and where it can write."""

    group: Group
    limits: ResourceLimits
    folders: tuple[Path, ...]
    given_bytes: int = 0
    """What already lay in those folders when the session was opened."""

    def met(self, *, failed: bool) -> str | None:
        """Name the limit that an ended agent had met: the kernel's own counters say so."""
        breach = self.group.breach()
        return breach if breach == "memory" or failed else None


async def passed(bounds: Bounds) -> str:
    """Wait until a limit is passed for good, and name it."""
    refused, looks, number = 0, 0, 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        number += 1
        now = bounds.group.usage().forks_refused
        breach = bounds.group.breach()
        if breach == "memory" or (breach == "pids" and now is None):
            return breach
        looks = looks + 1 if now is not None and now > refused else 0
        refused = max(refused, now or 0)
        if looks >= PERSISTENT_LOOKS:
            return "pids"
        if number % LOOKS_PER_DISK == 0 and await _disk_is_full(bounds):
            return "disk"


async def _disk_is_full(bounds: Bounds) -> bool:
    if free_floor(bounds.folders[0]) is not None:
        return True
    if bounds.limits.disk_bytes is None:
        return False
    most = bounds.limits.disk_bytes + bounds.given_bytes
    used = await used_bytes(*bounds.folders, pids=bounds.group.pids(), most_bytes=most)
    return used.bytes > most


def spelt(limits: ResourceLimits) -> str:
    """Say limits in one line."""
    cpu = "a fair share of cpu" if limits.cpu_percent is None else f"{limits.cpu_percent:g} % cpu"
    parts = (
        "no bound of memory" if limits.memory_mb is None else f"{limits.memory_mb:g} MB memory",
        cpu,
        "no bound of time" if limits.time_seconds is None else f"{limits.time_seconds:g} s",
        "no bound of disk" if limits.disk_mb is None else f"{limits.disk_mb:g} MB disk",
        "no bound of pids" if limits.pids is None else f"{limits.pids} pids",
    )
    return ", ".join(parts)
