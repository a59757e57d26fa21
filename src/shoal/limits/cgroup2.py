"""Control groups of version 2: one hierarchy with all controllers."""

import os
from collections.abc import Iterator
from pathlib import Path

from shoal.limits.cgroup_files import CgroupFiles, Hierarchies, LimitsHost
from shoal.limits.cgroups import HELD, Cgroups, list_working_controllers
from shoal.limits.group import Counter, Dialect, Setting
from shoal.model.limits import ResourceLimits

PERIOD_US = 100_000


def cgroup2(hierarchies: Hierarchies, files: CgroupFiles, fleet_limits: ResourceLimits | None = None) -> Cgroups | None:
    """Return the enforcer, or `None` if it cannot limit memory."""
    place = _place(hierarchies, files)
    places = list_working_controllers(dict.fromkeys(HELD, place), DIALECT, files) if place else {}
    return Cgroups(places, DIALECT, files, fleet_limits) if "memory" in places else None


async def build(host: LimitsHost, fleet: ResourceLimits | None) -> Cgroups | None:
    """Return the enforcer for this host, or `None` if it does not work."""
    return cgroup2(host.hierarchies, host.files, fleet)


def _place(hierarchies: Hierarchies, files: CgroupFiles) -> Path | None:
    """Find the nearest group above our processes that hands memory and pids down, and that we may write.

    A group with processes in it, as our own, hands down nothing; and who moves must be allowed to write where both
    ways meet, so it has to lie above us.
    """
    own, mount = hierarchies.v2, hierarchies.mount
    for folder in (own, *own.parents) if own and mount else ():
        handed = (files.get(folder / "cgroup.subtree_control") or "").split()
        if {"memory", "pids"} <= set(handed) and os.access(folder / "cgroup.procs", os.W_OK):
            return folder
        if folder == mount:
            break
    return None


def _limits(limits: ResourceLimits) -> tuple[Setting, ...]:
    return tuple(_settings(limits))


def _settings(limits: ResourceLimits) -> Iterator[Setting]:
    if limits.memory_bytes is not None:
        yield Setting(controller="memory", file="memory.max", value=str(limits.memory_bytes))
        yield Setting(controller="memory", file="memory.swap.max", value="0", optional=True)
        yield Setting(controller="memory", file="memory.oom.group", value="1", optional=True)
    if limits.cpu_percent is not None:
        quota = int(limits.cpu_percent * PERIOD_US / 100)
        yield Setting(controller="cpu", file="cpu.max", value=f"{quota} {PERIOD_US}")
    if limits.pids is not None:
        yield Setting(controller="pids", file="pids.max", value=str(limits.pids))


DIALECT = Dialect(
    name="cgroup2",
    join="cgroup.procs",
    limits=_limits,
    fleet=tuple(Setting(controller=name, file="cgroup.subtree_control", value=f"+{name}") for name in HELD),
    ending=(
        Setting(controller="cpu", file="cpu.max", value="max"),  # a throttled process dies slowly
        Setting(controller="memory", file="cgroup.kill", value="1", optional=True),
    ),
    freeze=Setting(controller="memory", file="cgroup.freeze", value="1"),
    thaw=Setting(controller="memory", file="cgroup.freeze", value="0"),
    oom_kills=Counter(controller="memory", file="memory.events", entry="oom_kill"),
    forks_refused=Counter(controller="pids", file="pids.events", entry="max"),
    memory=Counter(controller="memory", file="memory.current"),
    memory_peak=Counter(controller="memory", file="memory.peak"),
    pids=Counter(controller="pids", file="pids.current"),
    cpu=Counter(controller="cpu", file="cpu.stat", entry="usage_usec"),
    cpu_unit_seconds=1e-6,
)
