"""One kernel control group, in one hierarchy or several."""

import contextlib
import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Broken
from shoal.limits.cgroup_files import CgroupFiles
from shoal.limits.kind import JOIN, ResourceUsage, before, kill_each
from shoal.model.command import Command
from shoal.model.limits import ResourceLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value for one control file; *optional* if not every kernel supports it."""

    controller: str
    file: str
    value: str
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A kernel counter: the whole file, or the number after *entry*."""

    controller: str
    file: str
    entry: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The control files of one cgroup version."""

    name: str
    join: str
    """The file by which a process joins."""
    limits: Callable[[ResourceLimits], tuple[Setting, ...]]
    """For each controller, the setting that is the limit itself comes first."""
    fleet: tuple[Setting, ...]
    ending: tuple[Setting, ...]
    """What makes ending all processes fast and reliable."""
    freeze: Setting
    thaw: Setting
    oom_kills: Counter
    forks_refused: Counter
    memory: Counter
    memory_peak: Counter
    pids: Counter
    cpu: Counter
    cpu_unit_seconds: float
    renewal: Setting | None = None
    """How to reset the maximum use; `None` if a reused group would show its former maximum."""


EMPTY_SECONDS = 10.0
LEFT_BYTES = 8 * 2**20
SHORTEST, LONGEST = 0.0005, 0.02


class KernelGroup:
    """The same name in each hierarchy; *folders* are by controller, and several may be one.

    Once it is closed, nothing can join it, and it reports what was seen then.
    """

    def __init__(self, name: str, folders: Mapping[str, Path], dialect: Dialect, files: CgroupFiles) -> None:
        self.name = name
        self.places = tuple(dict.fromkeys(folders.values()))
        self._folders = folders
        self._dialect = dialect
        self._files = files
        self._is_closed = False
        self._was_killed = False
        self._is_empty = False
        self._is_frozen = False
        self._breach: str | None = None
        self._last: ResourceUsage | None = None
        self._spent_before = 0.0

    def wrap(self, command: Command) -> Command:
        """Make *command* join the group first."""
        return before(command, JOIN, *(f"{place}/{self._dialect.join}" for place in self.places), "--")

    def breach(self) -> str | None:
        """Return the limit that was reached, by the kernel's counters: the main process may survive either."""
        if self._is_closed:
            return self._breach
        if self._read(self._dialect.oom_kills):
            return "memory"
        return "pids" if self._read(self._dialect.forks_refused) else None

    def usage(self) -> ResourceUsage:
        """Return the usage."""
        if self._last is not None:
            return self._last
        return ResourceUsage(
            memory_bytes=self._read(self._dialect.memory),
            memory_peak_bytes=self._read(self._dialect.memory_peak),
            cpu_seconds=self.cpu_seconds(),
            pids=self._read(self._dialect.pids),
            forks_refused=self._read(self._dialect.forks_refused),
        )

    def cpu_seconds(self) -> float | None:
        """Return the CPU seconds so far."""
        spent = self._read(self._dialect.cpu)
        return None if spent is None else spent * self._dialect.cpu_unit_seconds - self._spent_before

    @property
    def is_as_new(self) -> bool:
        """Return whether the empty group can serve another agent like a new one.

        Memory can outlive its process: files in memory stay charged to the group.
        """
        renewal = self._dialect.renewal
        if renewal is None or self._was_killed or not self._is_closed or self._breach is not None:
            return False
        # Zombies still count; a subgroup that the agent made would stay.
        if not self._is_empty or (self._read(self._dialect.memory) or 0) > LEFT_BYTES:
            return False
        if any(self._files.has_groups(place) for place in self.places):
            return False
        try:
            self.write(renewal)
        except OSError:
            return False
        return True

    def reuse_as(self, name: str) -> "KernelGroup":
        """Return the same group under the name of another agent."""
        self._last = ResourceUsage()
        group = KernelGroup(name, self._folders, self._dialect, self._files)
        group._spent_before = group.cpu_seconds() or 0.0
        return group

    def pids(self) -> tuple[int, ...]:
        """Return its processes."""
        return tuple({pid for place in self.places for pid in self._files.pids(place)})

    def freeze(self) -> None:
        """Let nothing in it run until `thaw`."""
        if not self._is_closed:
            self._is_frozen = True
            self.write(self._dialect.freeze)

    def thaw(self) -> None:
        """Let what was frozen run again."""
        if self._is_frozen:
            self._is_frozen = False
            with contextlib.suppress(FileNotFoundError):  # the group and its processes are gone
                self.write(self._dialect.thaw)

    def kill(self) -> None:
        """Kill all processes in it."""
        self._close()
        self.finish()
        self._was_killed = True
        for setting in self._dialect.ending:
            with contextlib.suppress(OSError):  # only an aid: each process is signalled, too
                self.write(setting)
        # A process that is joining is not in all hierarchies yet, and runs no code of the agent; the exit checks each.
        kill_each(lambda: self._files.pids(self.places[0]))
        with contextlib.suppress(OSError):  # with version 1, frozen processes die when they are thawed
            self.write(self._dialect.thaw)
        self._is_frozen = False

    def end_rest(self) -> None:
        """Kill the processes that outlived the main process."""
        if self._files.pids(self.places[0]):
            self.kill()

    def kill_all(self) -> None:
        """Kill until the group is empty; raise `Broken` if a process survives."""
        self._close()
        # No process is charged, zombies included: one file says so instead of four.
        self._is_empty = self._dialect.renewal is not None and self._read(self._dialect.pids) == 0
        if self._is_empty:
            return
        end = time.monotonic() + EMPTY_SECONDS
        pause = SHORTEST
        while left := self.pids():
            if time.monotonic() > end:
                raise Broken(f"processes {sorted(left)[:5]} of {self.name} outlive SIGKILL by {EMPTY_SECONDS:.0f} s")
            self.kill()
            time.sleep(pause)
            pause = min(pause * 2, LONGEST)

    def write(self, setting: Setting) -> None:
        """Set one value; skip a controller that this host does not have."""
        folder = self._folders.get(setting.controller)
        if folder is None:
            return
        try:
            self._files.write(f"{folder}/{setting.file}", setting.value)
        except OSError as error:
            if not setting.optional or error.errno not in (errno.ENOENT, errno.EINVAL):
                raise

    def has(self, setting: Setting) -> bool:
        """Return whether a setting took effect."""
        folder = self._folders.get(setting.controller)
        return folder is not None and self._files.get(f"{folder}/{setting.file}") == setting.value

    def _read(self, counter: Counter) -> int | None:
        folder = self._folders.get(counter.controller)
        return None if folder is None else self._files.number(f"{folder}/{counter.file}", counter.entry)

    def finish(self) -> None:
        """Keep the usage before its counters disappear."""
        self._last = self.usage()

    def _close(self) -> None:
        """Keep the verdict: forbidding forks to end the group would count as its own breach."""
        if not self._is_closed:
            self._breach = self.breach()
            self._is_closed = True
