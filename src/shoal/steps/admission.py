"""Start an agent only if the machine has free resources for it; limits are not added up."""

import contextlib
import functools
import itertools
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.model.events import Waiting
from shoal.patterns.limiter import Limiter
from shoal.proc.free_space import free_floor
from shoal.sessions.context import RunContext
from shoal.store.paths import RESERVE
from shoal.store.reserve import make_reserve

MIB = 2**20
FLOOR_BYTES = 512 * MIB
FLOOR_PART = 0.05
# An agent that has just started has not yet used what it will. For a few seconds this much is reserved for it, or
# less, if agents that run longer use less: twice what each of them used.
EARLY_BYTES = 128 * MIB
LEAST_BYTES = 16 * MIB
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 0.4
EARLY_SECONDS = 5.0
SETTLED = 8  # this many agents show how much one uses
SPARE_TASKS = 256
SPARE_OWN_TASKS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What the machine has free now."""

    memory_bytes: int
    memory_total_bytes: int
    tasks: int
    most_tasks: int
    own_tasks_left: int = sys.maxsize
    """How many more processes and threads this user may start (`ulimit -u`)."""


class Admission:
    """Decides whether the next agent has to wait; *look* and *clock* read the machine unless others are given."""

    def __init__(
        self,
        state: Path,
        *,
        objects: Path | None = None,
        look: Callable[[], Free] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._objects = objects or state
        self._look = look or free
        self._clock = clock
        self._promised: deque[float] = deque()
        self._started: dict[int, float] = {}
        self._running = 0
        self._alone_bytes = 0
        self._numbers = itertools.count()
        self._now: Free | None = None
        self._short: str | None = None
        self._looked = 0.0

    def reason(self) -> str | None:
        """Return what is short; `None` reserves resources for one more agent."""
        now = self._measure_free()
        if not self._running:
            self._alone_bytes = now.memory_bytes
        short = _memory(now, self._early() * self._each(now)) or self._short or _tasks(now)
        if short is None:
            self._promised.append(self._clock())
        return short

    def _measure_free(self) -> Free:
        """Measure the machine, once for all agents that arrive together; their reservations count anyway."""
        if self._now is None or self._clock() - self._looked >= LOOK_SECONDS:
            self._now, self._short, self._looked = self._look(), self._disk(), self._clock()
        return self._now

    def _disk(self) -> str | None:
        """Return which disk is too full or unavailable; the reserve of the ledger and of recovery is not for agents."""
        try:
            missing = make_reserve(self._state / RESERVE)
            return free_floor(self._state, coming_bytes=missing) or free_floor(self._objects)
        except OSError as error:
            return f"{error.filename or self._state} cannot be reached: {error.strerror}"

    @contextlib.contextmanager
    def carried(self) -> Iterator[None]:
        """Keep the reservation while the agent runs; what it has not used is free again when it ends."""
        if self._promised:
            self._promised.popleft()
        number = next(self._numbers)
        self._started[number] = self._clock()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._started.pop(number, None)

    def _each(self, now: Free) -> int:
        """Return how much to reserve for each recent agent, judging by what is gone since no agent ran."""
        settled = self._running - len(self._started)
        if settled < SETTLED:
            return EARLY_BYTES
        taken = 2 * (self._alone_bytes - now.memory_bytes) // settled
        return min(EARLY_BYTES, max(LEAST_BYTES, taken))

    def _early(self) -> int:
        """Count the agents that started recently."""
        since = self._clock() - EARLY_SECONDS
        while self._promised and self._promised[0] < since:
            self._promised.popleft()
        for number in list(itertools.takewhile(lambda number: self._started[number] < since, self._started)):
            del self._started[number]
        return len(self._promised) + len(self._started)


def admitting(context: RunContext, admission: Admission, most: int) -> Limiter:
    """Make a limiter that starts an agent only if the machine has room for it, and reports when agents wait."""
    notice = WaitNotice(lambda reason: context.ledger.post(Waiting(run=context.run, reason=reason)))

    def admit() -> str | None:
        reason = admission.reason()
        notice.update(reason)
        return reason

    return Limiter(most, admit=admit)


class WaitNotice:
    """Reports once that agents wait, when none has started for a while, and once when this is over.

    While short agents keep ending, another starts for each of them, and nothing is reported.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._since: float | None = None
        self._is_given = False

    def update(self, reason: str | None) -> None:
        """Note whether the next agent may start, or the *reason* why not."""
        if reason is None:
            self._since = None
            if self._is_given:
                self._is_given = False
                self._say("")
            return
        self._since = self._clock() if self._since is None else self._since
        if not self._is_given and self._clock() - self._since >= PATIENCE_SECONDS:
            self._is_given = True
            self._say(reason)


def free() -> Free:
    """Measure this machine."""
    words = _read_kernel_file("/proc/meminfo").split()  # `MemTotal: 1 kB MemFree: 1 kB MemAvailable: 1 kB …`
    return Free(
        memory_bytes=int(words[words.index("MemAvailable:") + 1]) * 1024,
        memory_total_bytes=int(words[words.index("MemTotal:") + 1]) * 1024,
        tasks=int(_read_kernel_file("/proc/loadavg").split()[3].split("/")[1]),
        most_tasks=_most_tasks(),
        own_tasks_left=_own_tasks_left(),
    )


def _own_tasks_left() -> int:
    """Return how many more processes `ulimit -u` allows; it does not limit root."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or os.geteuid() == 0:
        return sys.maxsize
    with os.scandir("/proc") as entries:
        return soft - sum(_threads(entry.path) for entry in entries if entry.name.isdigit())


def _threads(process: str) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):  # the process has ended
        if os.stat(process).st_uid == os.geteuid():  # noqa: PTH116 - called for every process
            return int(_read_kernel_file(f"{process}/stat").rpartition(")")[2].split()[17])
    return 0


@functools.cache
def _most_tasks() -> int:
    return min(int(_read_kernel_file(f"/proc/sys/kernel/{name}")) for name in ("pid_max", "threads-max"))


def _read_kernel_file(file: str) -> str:
    """Read a file of the kernel: called for each session, and three times as fast as Path."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode()
    finally:
        os.close(fd)


def _memory(now: Free, kept_bytes: int) -> str | None:
    floor = min(FLOOR_BYTES, int(now.memory_total_bytes * FLOOR_PART))
    left = now.memory_bytes - kept_bytes
    if left >= floor:
        return None
    kept = f", {kept_bytes // MIB} MB of them for agents that have just started" if kept_bytes else ""
    return f"{now.memory_bytes // MIB} MB of memory are free{kept}, and {floor // MIB} MB must stay free"


def _tasks(now: Free) -> str | None:
    if now.own_tasks_left < SPARE_OWN_TASKS:
        left = max(0, now.own_tasks_left)
        return f"you may start only {left} more processes (`ulimit -u`), and {SPARE_OWN_TASKS} must stay free"
    if now.tasks + SPARE_TASKS <= now.most_tasks:
        return None
    return f"this machine runs {now.tasks} of at most {now.most_tasks} processes and threads"
