"""Telling a slow client from a hung one: by what it says, and by what its processes do.

What the process trees of three clients did in a second, seen over 20 s (CPU in parts of one processor, and bytes that
they read and wrote; the greatest second in brackets):

| | Claude Code 2.1.325 | Codex 0.166.0 | goose 1.52.0 |
|---|---|---|---|
| its model hangs | 0.008 (0.06), 0.8 kB (15 kB) | 0.024 (0.06), 10 kB (22 kB) | 0, 0 |
| its model says a word each second | 0.011 (0.06), 0.2 kB | 0.008 (0.02), 2.4 kB | 0.001, 4 kB |
| it waits for a rate limit | 0.011 (0.06), 0.8 kB | 0.011 (0.02), 3.6 kB | 0, 0 |
| a tool of it sleeps | 0.024 (0.17), 15 kB (281 kB) | 0, 0.1 kB | 0.003 (0.02), 0 |

So neither shows whether a model is slow or hung: only what the client says does, and each is asked to tell of every
piece that comes. CPU and bytes show work that it does itself, where they are far above what it takes to wait.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

from shoal.engine.hearing import Hearing
from shoal.limits.kind import Group

BUSY = 0.1
"""Of one processor."""
MOVING_BYTES = 100_000.0
"""Read and written in a second."""
LOOKS = 10
LONGEST_LOOK = 5.0
MOST_PIDS = 256


async def stalled(hearing: Hearing, group: Group, seconds: float) -> None:
    """Return when the client has shown no life for *seconds*.

    A wait that it told us of is no stall, and neither is a tool call: what that may take is bounded by the timeout.
    """
    watch = _Watch(hearing, group)
    pause = min(LONGEST_LOOK, seconds / LOOKS)
    while True:
        await asyncio.sleep(pause)
        if watch.is_dead_since(seconds):
            return


@dataclass
class _Watch:
    hearing: Hearing
    group: Group
    alive_at: float = field(default_factory=time.monotonic)
    _looked_at: float = field(default_factory=time.monotonic)
    _spent: float = 0.0
    _moved: int = 0

    def is_dead_since(self, seconds: float) -> bool:
        now = time.monotonic()
        if self._is_working(now) or self.hearing.is_using_a_tool or now < self.hearing.waits_until:
            self.alive_at = now
        self.alive_at = max(self.alive_at, self.hearing.heard_at)
        return now - self.alive_at >= seconds

    def _is_working(self, now: float) -> bool:
        spent, moved = self.group.usage().cpu_seconds or 0.0, moved_bytes(self.group.pids())
        passed, used, more = now - self._looked_at, spent - self._spent, moved - self._moved
        self._looked_at, self._spent, self._moved = now, spent, moved
        return used > BUSY * passed or more > MOVING_BYTES * passed


def moved_bytes(pids: tuple[int, ...]) -> int:
    """Sum what processes have read and written so far, of those that can be looked at."""
    moved = 0
    for pid in pids[:MOST_PIDS]:
        with contextlib.suppress(OSError, ValueError):
            counted = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            moved += int(counted.get("rchar", 0)) + int(counted.get("wchar", 0))
    return moved
