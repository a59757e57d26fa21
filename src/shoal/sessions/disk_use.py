"""Measure a session's disk use by walking its files, with its processes stopped where a plain walk is not reliable."""

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from shoal.limits.disk import ENTRY_BYTES, FILE_BYTES, REST, DiskUsage, measure_disk
from shoal.limits.kind import LimitGroup, signal_each
from shoal.proc.free_space import FreeSpace, room
from shoal.proc.namespace import Namespace

# With signals: a frozen group of version 1 cannot be killed, and would outlive a killed coordinator.
SECONDS = 2.0
KERNEL_SECONDS = 0.25  # after this, a process that waits in the kernel counts as stopped
LOOK_SECONDS = 0.002
STOPPED = frozenset("TtZX")


@contextlib.asynccontextmanager
async def hold_stopped(members: Callable[[], Iterable[int]]) -> AsyncIterator[bool]:
    """Stop all *members* and yield whether all have stopped; on exit, continue those that we stopped.

    Processes that were stopped before stay stopped. A stopped process cannot wake or start another.
    """
    stopped: set[int] = set()
    try:
        yield await _all_stopped(members, stopped)
    finally:
        signal_each(functools.partial(_both, stopped, members), Namespace.resume)


async def _all_stopped(members: Callable[[], Iterable[int]], stopped: set[int]) -> bool:
    began = time.monotonic()
    while moving := [
        pid for pid in members() if not _is_still(pid, is_waiting_enough=_has_waited(began, KERNEL_SECONDS))
    ]:
        if _has_waited(began, SECONDS):
            return False
        stopped.update(moving)
        signal_each(functools.partial(_both, moving, members), Namespace.pause)
        await asyncio.sleep(LOOK_SECONDS)
    return True


def _both(some: Iterable[int], members: Callable[[], Iterable[int]]) -> set[int]:
    return set(some).intersection(members())


def _has_waited(since: float, seconds: float) -> bool:
    return time.monotonic() - since > seconds


def _is_still(pid: int, *, is_waiting_enough: bool) -> bool:
    """Return whether no thread of a process can run its program's code any more.

    A thread that waits in the kernel, for a disk or a vfork child, stops before it leaves the kernel.
    """
    states = STOPPED | {"D"} if is_waiting_enough else STOPPED
    with contextlib.suppress(OSError):
        return all(_state(f"/proc/{pid}/task/{thread}/stat") in states for thread in os.listdir(f"/proc/{pid}/task"))
    return True  # gone


def _state(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


# A legitimate build also removes files while we walk. Two walks in a row that lost something are a reason to look
# closer; so is a disk that lost more than the session's remaining allowance: files can be moved behind a walk.
LOST_WALKS = 2
STILL_PART = 0.05  # the share of an agent's time for which counting may stop it
UNSTILL_COUNTS = 3  # the number of counts that may fail to stop it


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Where a session writes, and how much it may store there."""

    folders: tuple[Path, ...]
    most_bytes: int
    group: LimitGroup
    unread: Callable[[], Awaitable[int]] | None = None
    """Counts what is in those folders although we may not read it, where that is possible."""


class DiskUse:
    """Counts a session's disk use; *at_start* is the free space of its disk before the session wrote anything."""

    def __init__(self, allowed: Allowance, at_start: FreeSpace) -> None:
        self._allowed = allowed
        self._place = allowed.folders[0]
        self._room = at_start
        self._used_bytes = 0
        self._lost_walks = 0
        self._unstill = 0
        self._not_before = 0.0
        self.entries = 0
        self.bytes = 0
        """The result of the last walk."""

    @property
    def is_doubtful(self) -> bool:
        """Return whether the last walk lost something on its way."""
        return self._lost_walks > 0

    async def is_over(self) -> bool:
        """Count, and return whether the session exceeds its limit."""
        used = await self._walk(REST)
        self.entries, self.bytes = used.entries, used.bytes
        if used.bytes > self._allowed.most_bytes:
            return True
        self._lost_walks = self._lost_walks + 1 if used.lost else 0
        try:
            is_suspect = self._is_suspect()
        except FileNotFoundError:  # the repository was renamed: it is counted again once it is back
            return False
        return is_suspect and time.monotonic() >= self._not_before and await self._is_over_at_rest()

    def _is_suspect(self) -> bool:
        """Return whether the session may use more than the walk found."""
        now = room(self._place)
        taken = self._room.free_bytes - now.free_bytes
        taken += (self._room.free_inodes - now.free_inodes) * (ENTRY_BYTES + FILE_BYTES)
        return self._lost_walks >= LOST_WALKS or taken > self._allowed.most_bytes - self._used_bytes

    async def _is_over_at_rest(self) -> bool:
        began = time.monotonic()
        async with hold_stopped(self._allowed.group.pids) as is_still:
            used = await self._walk(0)
            now = room(self._place)
        ended = time.monotonic()
        self._not_before = ended + (ended - began) / STILL_PART
        if is_still:
            self._room, self._used_bytes, self._lost_walks, self._unstill = now, used.bytes, 0, 0
            return used.bytes > self._allowed.most_bytes
        self._unstill += 1
        return self._unstill >= UNSTILL_COUNTS

    async def _walk(self, rest: float) -> DiskUsage:
        allowed = self._allowed
        used = await measure_disk(*allowed.folders, pids=allowed.group.pids(), most_bytes=allowed.most_bytes, rest=rest)
        # A folder that its owner may write but not list hides its content from an ordinary user.
        if used.unread and allowed.unread is not None and used.bytes <= allowed.most_bytes:
            return DiskUsage(max(used.bytes, await allowed.unread()), used.entries, lost=used.lost)
        return used
