"""Floods of output held back: who says more than can be heard waits, instead of taking the machine from the others."""

import os
import time

# Eight agents that print short lines take two cores while they are read; a writer that waits on its pipe takes none.
TOTAL_BYTES = 2**20 * (os.cpu_count() or 1)  # a second, of all streams in flood together
STEADY_BYTES = 2**15  # a second, of each stream: more than that for long is a flood,
BURST_BYTES = 2**19  # but so much may be said at once
LINE_BYTES = 20  # what a line end counts for: each line is a system call of its writer's
SIP_BYTES = 2**10  # a chunk of less is a sip; each becomes an event of some hundred bytes
SIPS = 50  # a second: who writes two bytes at a time is read when there is more of it,
BURST_SIPS = 16  # unless it was quiet before
LONGEST = 2.0  # seconds of rest
FRESH = 3.0  # seconds for which a flood is remembered


class Flood:
    """What the streams of one run's agents may say together; a stream alone in flood disturbs nobody, and goes on."""

    def __init__(self) -> None:
        self._pressing: dict[Flow, float] = {}

    def flow(self) -> "Flow":
        """Give one stream its share."""
        return Flow(self)

    def others(self, flow: "Flow", now: float) -> int:
        """Note that *flow* is in flood, and count those that are too."""
        self._pressing.pop(flow, None)
        while self._pressing and next(iter(self._pressing.values())) < now - FRESH:
            del self._pressing[next(iter(self._pressing))]
        count = len(self._pressing)
        self._pressing[flow] = now  # last, so that the first is always the oldest
        return count


class Flow:
    """One stream, and how much it may say before it has to rest."""

    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._level = float(BURST_BYTES)
        self._sips = float(BURST_SIPS)
        self._at = time.monotonic()

    def rest(self, chunk: bytes) -> float:
        """Count a chunk, and say for how many seconds nothing more of its stream is wanted."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        return max(self._after_a_sip(chunk, passed), self._after_a_flood(chunk, passed))

    def _after_a_sip(self, chunk: bytes, passed: float) -> float:
        self._sips = min(BURST_SIPS, self._sips + passed * SIPS) - max(0.0, 1 - len(chunk) / SIP_BYTES)
        return max(0.0, -self._sips / SIPS)

    def _after_a_flood(self, chunk: bytes, passed: float) -> float:
        self._level = min(BURST_BYTES, self._level + passed * STEADY_BYTES)
        self._level -= len(chunk) + LINE_BYTES * chunk.count(b"\n")
        if self._level >= 0:
            return 0.0
        missing, self._level = -self._level, 0.0  # paid for by the rest
        others = self._flood.others(self, self._at)
        return min(LONGEST, missing * (1 + others) / TOTAL_BYTES) if others else 0.0
