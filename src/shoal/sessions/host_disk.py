"""Protect the host's last free disk space: poll it for all sessions at once, more often the less is left."""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.limits.kind import LimitGroup
from shoal.proc.free_space import LONGEST, FreeSpace, pause, room

WINDOW_SECONDS = 0.1  # the window in which the decrease is measured
REACTION_SECONDS = 0.15  # how long a killed process may still write
NEAR_BYTES = 2**30
NEAR_INODES = 100_000
SAMPLE_SECONDS = 0.1
SETTLE_SECONDS = 0.05


class HostDiskWatch:
    """Ends the session that fills the host's disk before free space or inodes fall below the reserve."""

    def __init__(self) -> None:
        self._disks: dict[int, _Disk] = {}

    @contextlib.contextmanager
    def watching(self, group: LimitGroup, place: Path) -> Iterator["DiskWriter"]:
        """Watch the disk of *place* while a session writes there."""
        device = os.stat(place).st_dev  # noqa: PTH116 - called per session; Path.stat takes twice as long
        disk = self._disks.setdefault(device, _Disk(place))
        tenant = DiskWriter(group)
        disk.enter(tenant)
        try:
            yield tenant
        finally:
            disk.leave(tenant)


class DiskWriter:
    """A session that writes to a disk; *ended* is set when it was ended to keep the reserve free."""

    def __init__(self, group: LimitGroup) -> None:
        self.group = group
        self.entries = 0
        """How many files it had at the last count."""
        self.ended = asyncio.Event()

    def end(self) -> None:
        """Kill at once: a fast writer fills the disk before a task wakes up."""
        self.group.kill()
        self.ended.set()

    def sample(self) -> "_Sample":
        """Read how much its processes have written, and how long they have run."""
        written = [_read_sample(pid) for pid in self.group.pids()]
        return _Sample(
            stored=sum(use.stored for use in written),
            written=sum(use.written for use in written),
            spent=self.group.cpu_seconds() or 0.0,
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    """Bytes written to disks, bytes written anywhere, and CPU seconds."""

    stored: int = 0
    written: int = 0
    spent: float = 0.0


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    room: FreeSpace


class _Disk:
    """One file system, and the sessions that write there."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._tenants: dict[DiskWriter, _Sample] = {}
        self._looks: deque[_Look] = deque()
        self._sampled = 0.0
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, tenant: DiskWriter) -> None:
        """Watch *tenant* too."""
        self._tenants[tenant] = _Sample()
        if self._timer is None:
            self._sample()

    def leave(self, tenant: DiskWriter) -> None:
        """Stop watching *tenant*."""
        self._tenants.pop(tenant, None)
        if not self._tenants and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._looks.clear()

    def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        rest = LONGEST
        with contextlib.suppress(OSError):  # a network disk may be away for a while
            look = _Look(loop.time(), room(self._place))
            self._looks.append(look)
            while len(self._looks) > 2 and self._looks[1].at <= look.at - WINDOW_SECONDS:
                self._looks.popleft()
            self._judge(look)
            rest = pause(look.room)
        self._timer = loop.call_later(rest, self._sample)

    def _judge(self, look: _Look) -> None:
        """End whoever takes the last of the disk, one at a time: the others may continue if that suffices."""
        lost_bytes, lost_inodes = self._fall(look)
        spare = look.room
        if look.at >= self._not_before:
            if spare.spare_bytes < lost_bytes * REACTION_SECONDS:
                self._end_writer(look)
            elif spare.spare_inodes < lost_inodes * REACTION_SECONDS:
                self._end_maker(look)
        is_near = spare.spare_bytes < NEAR_BYTES or spare.spare_inodes < NEAR_INODES
        if is_near and look.at - self._sampled >= SAMPLE_SECONDS:
            self._sampled = look.at
            for tenant in self._tenants:
                self._tenants[tenant] = tenant.sample()

    def _fall(self, look: _Look) -> tuple[float, float]:
        """Return how many bytes and inodes the disk loses per second; zero while it is well above its reserve."""
        first = self._looks[0]
        passed = max(look.at - first.at, WINDOW_SECONDS / 2)
        fallen_bytes = first.room.free_bytes - look.room.free_bytes
        fallen_inodes = first.room.free_inodes - look.room.free_inodes
        return max(0.0, fallen_bytes / passed), max(0.0, fallen_inodes / passed)

    def _growth(self, tenant: DiskWriter) -> _Sample:
        """Return what *tenant* has done since the last sample."""
        now, before = tenant.sample(), self._tenants[tenant]
        return _Sample(now.stored - before.stored, now.written - before.written, now.spent - before.spent)

    def _end_writer(self, look: _Look) -> None:
        """End the session that stored most recently.

        Not every file system counts what is stored, and space can be taken without a write. So once the reserve is
        used and more goes, it is the session that wrote most anywhere, or else the one that used most CPU.
        """
        grown = {tenant: self._growth(tenant) for tenant in self._tenants}
        writer = max(grown, key=lambda tenant: (grown[tenant].stored, grown[tenant].written, grown[tenant].spent))
        is_falling = self._looks[0].room.free_bytes > look.room.free_bytes
        if grown[writer].stored > 0 or (look.room.spare_bytes < 0 and is_falling and grown[writer] != _Sample()):
            self._end_one(writer, look)

    def _end_maker(self, look: _Look) -> None:
        """End the working session with the most files: a sleeping one makes none, whatever a walk counted."""
        spent = {tenant: self._growth(tenant).spent for tenant in self._tenants}
        if any(spent.values()):
            self._end_one(max(spent, key=lambda tenant: (spent[tenant] > 0, tenant.entries, spent[tenant])), look)

    def _end_one(self, tenant: DiskWriter, look: _Look) -> None:
        self._not_before = look.at + SETTLE_SECONDS
        self._looks.clear()
        self._looks.append(look)
        if not tenant.ended.is_set():
            tenant.end()
        self._tenants.pop(tenant)


def _read_sample(pid: int) -> _Sample:
    """Read what a process and its reaped children have written; nothing if it cannot be inspected."""
    with contextlib.suppress(OSError, ValueError):
        counted = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return _Sample(stored=int(counted.get("write_bytes", 0)), written=int(counted.get("wchar", 0)))
    return _Sample()
