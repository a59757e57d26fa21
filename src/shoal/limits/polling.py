"""Enforcement without kernel support: poll the agent's processes, and end them when they exceed a limit."""

import contextlib
import errno
import os
import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.limits.cgroup_files import LimitsHost
from shoal.limits.kind import ResourceUsage, before, kill_each
from shoal.model.command import Command
from shoal.model.limits import ResourceLimits

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process: its threads, its memory (shared pages included), and its CPU with that of reaped children."""

    pid: int
    threads: int
    resident_bytes: int
    cpu_seconds: float


def list_descendants(roots: Iterable[int]) -> Iterator[ProcessInfo]:
    """Yield *roots* and all their descendants, a process before its children."""
    rest = list(roots)
    while rest:
        pid = rest.pop()
        if (seen := _read_process(pid)) is not None:
            yield seen
            rest += _children(pid)


def proportional_bytes(pid: int) -> int:
    """Return the proportional memory use of a process (PSS); 0 when it is gone."""
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/smaps_rollup").open() as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Pss:", "SwapPss:")))
    return 0


def _read_process(pid: int) -> ProcessInfo | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    words = stat.rpartition(b")")[2].split()  # the name in front may hold anything; words[0] is field 3
    spent = sum(map(int, words[11:15]))
    return ProcessInfo(pid, threads=int(words[17]), resident_bytes=int(words[21]) * PAGE, cpu_seconds=spent * TICK)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


# $1 is where the pid is reported, $2 the most processes of this user. dash says -p for them, bash -u.
TELL = """echo $$ >> "$1" || exit 125
[ "$2" = - ] || ulimit -p "$2" 2>/dev/null || ulimit -u "$2" || exit 125
shift 2; exec "$@\""""

SLACK = 4  # the cap is for the whole user, so it leaves room for other agents
LEAST_ROOM = 4096  # a process at the cap would keep the others from forking too
GAPS = (
    "memory is polled: an agent can exceed its limit between two polls",
    "memory in tmpfs, shm and memfd that no process has mapped is not counted",
    "cpu is not enforced: an agent can use every core",
    "pids are polled, and capped only for all processes of this user together",
    "limits of all agents together are not enforced",
)


class Polling:
    """Enforces limits by polling /proc."""

    name = "polling"
    holds = frozenset({"memory", "pids"})
    holds_fleet: frozenset[str] = frozenset()
    gaps = GAPS
    folders: tuple[Path, ...] = ()
    can_freeze = False

    @contextlib.contextmanager
    def group(self, name: str, limits: ResourceLimits) -> Iterator["PolledGroup"]:
        """Watch the commands that the group wraps; the caller ends them."""
        pids_fd = os.memfd_create(f"shoal-{name}", os.MFD_CLOEXEC)
        group = PolledGroup(name, limits, pids_fd)
        try:
            yield group
        finally:
            group.close()
            os.close(pids_fd)

    def hold_shared(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: groups share nothing."""
        return contextlib.nullcontext()

    def sweep(self) -> None:
        """Do nothing: there is nothing to clean up."""


class PolledGroup:
    """The processes below those that reported their pid before they executed the command."""

    def __init__(self, name: str, limits: ResourceLimits, pids_fd: int) -> None:
        self.name = name
        self._limits = limits
        self._pids_fd: int | None = pids_fd
        self._breach: str | None = None
        self._used = 0
        self._peak = 0
        self._cpu = 0.0

    def wrap(self, command: Command) -> Command:
        """Make *command* report its pid first, and cap the user's processes where the kernel applies that."""
        return before(command, TELL, f"/proc/{os.getpid()}/fd/{self._pids_fd}", _most_processes(self._limits.pids))

    def breach(self) -> str | None:
        """Take a reading, and return the first limit that was ever exceeded."""
        self._sample()
        return self._breach

    def usage(self) -> ResourceUsage:
        """Return the highest usage seen."""
        now = self._sample()
        return ResourceUsage(
            memory_bytes=self._used,
            memory_peak_bytes=self._peak,
            cpu_seconds=self._cpu,
            pids=sum(process.threads for process in now),
        )

    def cpu_seconds(self) -> float | None:
        """Return `None`: /proc counts in ticks, which are too coarse."""
        return None

    def pids(self) -> tuple[int, ...]:
        """Return its current processes."""
        return tuple(process.pid for process in list_descendants(self._roots()))

    def freeze(self) -> None:
        """Refuse: the agent's other processes could continue those that a signal stopped."""
        raise OSError(errno.ENOTSUP, "there is no freezer")

    def thaw(self) -> None:
        """Do nothing: no process can be frozen."""

    def end_rest(self) -> None:
        """Do nothing: the process's watcher ends the rest."""

    def kill(self) -> None:
        """Kill all processes found, children first; a faster fork bomb ends with its namespace or launcher."""
        kill_each(lambda: self.pids()[::-1])

    def close(self) -> None:
        """Take the last reading."""
        self._sample()
        self._pids_fd = None

    def _sample(self) -> list[ProcessInfo]:
        now = list(self._enough(list_descendants(self._roots())))
        self._cpu = max(self._cpu, sum(process.cpu_seconds for process in now))
        self._note_memory(now)
        if self._limits.pids is not None and sum(process.threads for process in now) > self._limits.pids:
            self._breach = self._breach or "pids"
        return now

    def _enough(self, all_: Iterator[ProcessInfo]) -> Iterator[ProcessInfo]:
        """Stop at a number that is too high anyway, so that a fork bomb does not hold us up."""
        most = self._limits.pids
        count = 0
        for process in all_:
            count += process.threads
            yield process
            if most is not None and count > most:
                return

    def _note_memory(self, now: list[ProcessInfo]) -> None:
        most = self._limits.memory_bytes
        used = sum(process.resident_bytes for process in now)
        if most is not None and used > most:
            # Shared pages were counted once per process; the exact count is expensive, so only when it matters.
            used = sum(proportional_bytes(process.pid) for process in now)
            if used > most:
                self._breach = self._breach or "memory"
        self._used, self._peak = used, max(self._peak, used)

    def _roots(self) -> list[int]:
        if self._pids_fd is None:
            return []
        return [int(line) for line in os.pread(self._pids_fd, 4096, 0).split()]


def _most_processes(pids: int | None) -> str:
    """Cap the user's processes slightly above the current number; the kernel never caps root."""
    if pids is None or os.geteuid() == 0:
        return "-"
    running = int(Path("/proc/loadavg").read_text().split()[3].rpartition("/")[2])
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    wanted = running + max(SLACK * pids, LEAST_ROOM)
    return str(wanted if soft == resource.RLIM_INFINITY else min(wanted, soft))


async def build(_host: LimitsHost, _fleet: ResourceLimits | None) -> Polling:
    """Return the enforcer: every host can poll."""
    return Polling()
