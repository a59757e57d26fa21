"""Enforcement by control groups: a fleet's group, and below it one for each agent, in every hierarchy at once."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.errors import Broken
from shoal.limits.dialect import Dialect
from shoal.limits.files import Files
from shoal.limits.fleet import Fleet, is_orphan
from shoal.limits.group import KernelGroup
from shoal.model.limits import ResourceLimits

HELD = ("memory", "cpu", "pids")
PROBE = ResourceLimits(memory_mb=64, cpu_percent=10, pids=64)


class Cgroups:
    """The enforcer of either version; *places* are the folders, by controller, in which it makes its groups."""

    def __init__(
        self, places: Mapping[str, Path], dialect: Dialect, files: Files, fleet_limits: ResourceLimits | None = None
    ) -> None:
        self.name = dialect.name
        self.holds = self.holds_fleet = frozenset(HELD) & places.keys()
        self._places = places
        self._dialect = dialect
        self._files = files
        self._fleet = Fleet.ours().name
        self._fleet_limits = fleet_limits
        self._members = 0

    @property
    def gaps(self) -> tuple[str, ...]:
        """Say which controllers are missing."""
        missing = [name for name in HELD if name not in self.holds]
        return tuple(f"{name} is not held: no {self.name} controller for it can be used here" for name in missing)

    @contextlib.contextmanager
    def group(self, name: str, limits: ResourceLimits) -> Iterator[KernelGroup]:
        """Make a group in the fleet's; on leaving it is killed, seen empty and removed."""
        group = self._at(self._fleet, name)
        with contextlib.ExitStack() as undo:
            try:
                self._open_fleet(undo)
                self._make(group, undo)
                for setting in self._dialect.limits(limits):
                    group.put(setting)
            except OSError as error:
                raise Broken(f"the limits of {name} cannot be set up: {error}") from error
            try:
                yield group
            finally:
                group.emptied()

    def sweep(self) -> None:
        """Remove the groups that dead coordinators left, with whoever is left in them: only ours ever joined."""
        for fleet in {path.name for place in self._places.values() for path in self._files.groups(place)}:
            if is_orphan(fleet):
                self._clear(fleet)

    def _at(self, fleet: str, name: str = "") -> KernelGroup:
        below = f"{fleet}/{name}" if name else fleet
        folders = {controller: place / below for controller, place in self._places.items()}
        return KernelGroup(name or fleet, folders, self._dialect, self._files)

    def _open_fleet(self, undo: contextlib.ExitStack) -> None:
        """Make the fleet's group for its first member; who leaves last removes it."""
        self._members += 1
        undo.callback(self._leave_fleet)
        if self._members > 1:
            return
        fleet = self._at(self._fleet)
        for place in fleet.places:
            with contextlib.suppress(FileExistsError):  # somebody could not be ended, and is in it still
                self._files.make(place)
        bounds = self._dialect.limits(self._fleet_limits) if self._fleet_limits else ()
        for setting in (*self._dialect.fleet, *bounds):
            fleet.put(setting)

    def _leave_fleet(self) -> None:
        self._members -= 1
        if not self._members:
            for place in self._at(self._fleet).places:
                self._files.remove(place)

    def _make(self, group: KernelGroup, undo: contextlib.ExitStack) -> None:
        for place in group.places:
            self._files.make(place)
            undo.callback(self._files.remove, place)

    def _clear(self, fleet: str) -> None:
        whole = self._at(fleet)
        for name in {path.name for place in whole.places for path in self._files.groups(place)}:
            group = self._at(fleet, name)
            group.kill()
            for place in group.places:
                self._files.remove(place)
        for place in whole.places:
            self._files.remove(place)


def working(places: Mapping[str, Path], dialect: Dialect, files: Files) -> dict[str, Path]:
    """Try each controller alone, and give those in whose place a group can be made, limited and removed."""
    return {name: place for name, place in places.items() if _works(name, place, dialect, files)}


def _works(controller: str, place: Path, dialect: Dialect, files: Files) -> bool:
    limit = next((one for one in dialect.limits(PROBE) if one.controller == controller), None)
    try:
        with Cgroups({controller: place}, dialect, files).group("probe", PROBE) as group:
            return limit is None or group.has(limit)
    except Broken:
        return False
