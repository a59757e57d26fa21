"""How often sessions are polled, and how long an agent could work."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

SHORTEST_SECONDS = 0.2
LONGEST_SECONDS = 8.0
SHARE = 0.03  # of one core, for all polls together; waking up for them costs about the same again
DEAREST_SECONDS = 0.005  # the most that one poll counts for, so that a large tree does not delay other polls for long
WEIGHT = 0.1


class PollInterval:
    """The polling interval of all sessions of a run, from their number and the recent cost of a poll."""

    def __init__(self) -> None:
        self.watched = 0
        self._cost = 0.0

    @property
    def seconds(self) -> float:
        """How long to wait before the next poll of a session."""
        return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, self.watched * self._cost / SHARE))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count one more session."""
        self.watched += 1
        try:
            yield
        finally:
            self.watched -= 1

    @contextlib.contextmanager
    def look(self) -> Iterator[None]:
        """Measure the cost of one poll."""
        began = time.perf_counter()
        yield
        cost = min(time.perf_counter() - began, DEAREST_SECONDS)
        self._cost += (cost - self._cost) * WEIGHT


class WorkClock:
    """Counts the seconds in which an agent could work; it stands still while the agent is frozen."""

    def __init__(self) -> None:
        self._paused_at: float | None = None
        self._lost = 0.0
        self._turned = asyncio.Event()

    @property
    def is_paused(self) -> bool:
        """Return whether the clock is paused."""
        return self._paused_at is not None

    def now(self) -> float:
        """Return the seconds since an arbitrary start."""
        return (time.monotonic() if self._paused_at is None else self._paused_at) - self._lost

    def pause(self) -> None:
        """Stop the clock until `resume`."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()
            self._turn()

    def resume(self) -> None:
        """Let the clock run again."""
        if self._paused_at is not None:
            self._lost += time.monotonic() - self._paused_at
            self._paused_at = None
            self._turn()

    async def sleep(self, seconds: float) -> None:
        """Wait until *seconds* have passed on this clock."""
        end = self.now() + seconds
        while self.is_paused or self.now() < end:
            turned = self._turned
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(turned.wait(), None if self.is_paused else end - self.now())

    def _turn(self) -> None:
        self._turned.set()
        self._turned = asyncio.Event()
