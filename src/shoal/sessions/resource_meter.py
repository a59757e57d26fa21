"""Measure what one session uses of the machine: samples while it works, and totals for its result."""

import contextlib
import time
from collections.abc import Callable, Iterator

from shoal.limits.kind import LimitGroup
from shoal.model.resources import ResourceSample

Record = Callable[[ResourceSample], None]
SAMPLE_SECONDS = 1.0
FIRST_SAMPLES = 5
"""Short sessions get some samples too: while a session is young, the next one is due after a fifth of its age."""
SAMPLES = 120
"""A session of any age gets about this many samples for each doubling of its age."""
FLEET_SECONDS = 0.05
"""Per watched session: all of them together record at most 20 samples per second."""
MB = 2**20


class ResourceMeter:
    """Adds up the groups that one session had, at once or one after the other."""

    def __init__(self) -> None:
        self._began = self._looked = time.monotonic()
        self._due = 0.0
        self._groups: list[LimitGroup] = []
        self._peak: float | None = None
        self._spent: float | None = None
        self._weighted = 0.0
        self._weight = 0.0
        self._disk: float | None = None

    @property
    def resources(self) -> dict[str, float]:
        """Return what was used so far, as far as this host measures it, under the names of a report."""
        average = self._weighted / self._weight if self._weight else None
        found = {
            "memory_peak_mb": (self._peak, 1),
            "memory_average_mb": (average, 1),
            "cpu_seconds": (self._spent, 3),
            "disk_mb": (self._disk, 1),
        }
        return {name: round(number, digits) for name, (number, digits) in found.items() if number is not None}

    @contextlib.contextmanager
    def hold(self, group: LimitGroup) -> Iterator[None]:
        """Count *group*, which must outlive the body."""
        self._groups.append(group)
        self._looked = max(self._looked, time.monotonic())
        try:
            yield
        finally:
            self._groups.remove(group)
            used = group.usage()
            self._spent = _add(self._spent, used.cpu_seconds)
            if used.memory_peak_bytes is not None:
                self._peak = max(self._peak or 0.0, used.memory_peak_bytes / MB)

    def note_disk(self, used_bytes: int) -> None:
        """Note its current disk use; the maximum is kept."""
        self._disk = max(self._disk or 0.0, used_bytes / MB)

    def look(self, now: float, watched: int, record: Record) -> None:
        """Record a sample when the next is due; *watched* sessions are polled together."""
        if now < self._due:
            return
        age = now - self._began
        self._due = now + max(min(SAMPLE_SECONDS, age / FIRST_SAMPLES), age / SAMPLES, watched * FLEET_SECONDS)
        used = [group.usage() for group in self._groups]
        memory = _add(*(None if group.memory_bytes is None else group.memory_bytes / MB for group in used))
        if memory is not None:
            self._weighted += memory * (now - self._looked)
            self._weight += now - self._looked
        self._looked = now
        record(self._sample(memory, _add(self._spent, *(group.cpu_seconds for group in used))))

    def finish(self, record: Record) -> None:
        """Record the last sample, after the last group has ended."""
        record(self._sample(None, self._spent))

    def _sample(self, memory: float | None, spent: float | None) -> ResourceSample:
        rounded = {"memory_mb": _round(memory, 1), "cpu_seconds": _round(spent, 3), "disk_mb": _round(self._disk, 1)}
        return ResourceSample(**rounded)


def _add(*numbers: float | None) -> float | None:
    """Add up the known values; `None` if there are none."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _round(number: float | None, digits: int) -> float | None:
    return None if number is None else round(number, digits)
