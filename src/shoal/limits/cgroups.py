"""Enforcement by control groups: a fleet's group, and below it one for each agent, in every hierarchy at once."""

import contextlib
import itertools
import os
import re
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import Broken
from shoal.limits.cgroup_files import CgroupFiles
from shoal.limits.group import Dialect, KernelGroup
from shoal.model.limits import ResourceLimits

BOOT = Path("/proc/sys/kernel/random/boot_id")
NAME = re.compile(r"shoal-(?:([0-9a-f]{8})-)?(\d+)-(\d+)-(\d+)-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class Fleet:
    """All groups of one coordinator; the boot, pid namespace, pid and start time make its name unique."""

    boot: str
    namespace: int
    pid: int
    started: int
    mark: str = field(default_factory=lambda: secrets.token_hex(2))

    @classmethod
    def ours(cls) -> "Fleet":
        """Name a new fleet of this process."""
        return cls(_boot(), _namespace(), os.getpid(), start_ticks(os.getpid()) or 0)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"shoal-{self.boot}-{self.namespace}-{self.pid}-{self.started}-{self.mark}"


def is_orphan(name: str) -> bool:
    """Return whether a group is the fleet of a dead coordinator; `False` for other pid namespaces.

    The boot says nothing here: no group outlives it, and to end the agents of a living Shoal would be the worst.
    """
    found = NAME.fullmatch(name)
    if found is None:
        return False
    namespace, pid, start = map(int, found.groups()[1:])
    return namespace == _namespace() and start_ticks(pid) != start


def is_left_on_disk(name: str) -> bool:
    """Return whether a fleet's folder belongs to a dead coordinator, or is from before the last boot."""
    found = NAME.fullmatch(name)
    return found is not None and (found[1] not in (None, _boot()) or is_orphan(name))


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; `None` if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _boot() -> str:
    try:
        return BOOT.read_text()[:8]
    except OSError:  # /proc is incomplete: boots cannot be told apart
        return "0" * 8


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


HELD = ("memory", "cpu", "pids")
PROBE = ResourceLimits(memory_mb=64, cpu_percent=10, pids=64)


class Cgroups:
    """The enforcer of either version; *places* are the folders, by controller, in which it makes its groups."""

    def __init__(
        self,
        places: Mapping[str, Path],
        dialect: Dialect,
        files: CgroupFiles,
        fleet_limits: ResourceLimits | None = None,
    ) -> None:
        self.name = dialect.name
        self.holds = self.holds_fleet = frozenset(HELD) & places.keys()
        self._places = places
        self._dialect = dialect
        self._files = files
        self._fleet = Fleet.ours().name
        self._fleet_limits = fleet_limits
        self._members = 0
        self._made = itertools.count(1)
        self._idle: defaultdict[ResourceLimits, list[KernelGroup]] = defaultdict(list)

    @property
    def gaps(self) -> tuple[str, ...]:
        """Describe the missing controllers."""
        missing = [name for name in HELD if name not in self.holds]
        return tuple(f"{name} is not enforced: no {self.name} controller for it is usable here" for name in missing)

    @property
    def can_freeze(self) -> bool:
        """Return whether groups can be frozen."""
        return self._dialect.freeze.controller in self._places

    @property
    def folders(self) -> tuple[Path, ...]:
        """The parent folder of this coordinator's groups in each hierarchy; missing while there are none."""
        return self._at(self._fleet).places

    @contextlib.contextmanager
    def group(self, name: str, limits: ResourceLimits) -> Iterator[KernelGroup]:
        """Make a group inside the fleet's; on leaving, kill its processes and remove it."""
        with self.hold_shared():
            try:
                group = self._again(name, limits) or self._make_group(name, limits)
            except OSError as error:
                raise Broken(f"the limits of {name} cannot be set up: {error}") from error
            try:
                yield group
            finally:
                self._leave(group, limits)

    @contextlib.contextmanager
    def hold_shared(self) -> Iterator[None]:
        """Hold the fleet's group; the last one to leave removes it."""
        try:
            self._enter_fleet()
        except OSError as error:
            self._leave_fleet()
            raise Broken(f"the group of all agents cannot be set up: {error}") from error
        try:
            yield
        finally:
            self._leave_fleet()

    def sweep(self) -> None:
        """Remove the groups that dead coordinators left, and kill the processes in them."""
        for fleet in {path.name for place in self._places.values() for path in self._files.groups(place)}:
            if is_orphan(fleet):
                self._clear(fleet)

    def _at(self, fleet: str, folder: str = "", name: str = "") -> KernelGroup:
        below = f"{fleet}/{folder}" if folder else fleet
        folders = {controller: place / below for controller, place in self._places.items()}
        return KernelGroup(name or folder or fleet, folders, self._dialect, self._files)

    def _enter_fleet(self) -> None:
        """Make the fleet's group for its first member."""
        self._members += 1
        if self._members > 1:
            return
        fleet = self._at(self._fleet)
        for place in fleet.places:
            with contextlib.suppress(FileExistsError):  # it still has a process that could not be killed
                self._files.make(place)
        bounds = self._dialect.limits(self._fleet_limits) if self._fleet_limits else ()
        for setting in (*self._dialect.fleet, *bounds):
            fleet.write(setting)

    def _leave_fleet(self) -> None:
        self._members -= 1
        if not self._members:
            for group in itertools.chain.from_iterable(self._idle.values()):
                self._remove(group)
            self._idle.clear()
            self._remove(self._at(self._fleet))

    def _again(self, name: str, limits: ResourceLimits) -> KernelGroup | None:
        """Take an idle group: to make and remove four of them takes the kernel 1 ms."""
        idle = self._idle.get(limits)
        return idle.pop().reuse_as(name) if idle else None

    def _make_group(self, name: str, limits: ResourceLimits) -> KernelGroup:
        # not by its name alone: a group that this agent used may belong to another one now
        group = self._at(self._fleet, f"{name}-{next(self._made)}", name)
        try:
            for place in group.places:
                self._files.make(place)
            for setting in self._dialect.limits(limits):
                group.write(setting)
        except OSError:
            self._remove(group)
            raise
        return group

    def _leave(self, group: KernelGroup, limits: ResourceLimits) -> None:
        """Empty a group, and keep it for another agent with the same limits if it is reusable."""
        try:
            group.kill_all()
        except BaseException:
            self._remove(group)
            raise
        if group.is_as_new:
            self._idle[limits].append(group)
        else:
            group.finish()
            self._remove(group)

    def _remove(self, group: KernelGroup) -> None:
        for place in reversed(group.places):
            self._files.remove(place)

    def _clear(self, fleet: str) -> None:
        whole = self._at(fleet)
        for name in {path.name for place in whole.places for path in self._files.groups(place)}:
            group = self._at(fleet, name)
            with contextlib.suppress(Broken):  # the next start tries again
                group.kill_all()  # only an empty group can be removed
            self._remove(group)
        self._remove(whole)


def list_working_controllers(places: Mapping[str, Path], dialect: Dialect, files: CgroupFiles) -> dict[str, Path]:
    """Try each controller alone, and return those with which a group can be made, limited and removed."""
    return {name: place for name, place in places.items() if _works(name, place, dialect, files)}


def _works(controller: str, place: Path, dialect: Dialect, files: CgroupFiles) -> bool:
    limit = next((limit for limit in dialect.limits(PROBE) if limit.controller == controller), None)
    try:
        with Cgroups({controller: place}, dialect, files).group("probe", PROBE) as group:
            return limit is None or group.has(limit)
    except Broken:
        return False
