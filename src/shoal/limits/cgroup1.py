"""Control groups of version 1: one hierarchy for each controller."""

import os
from collections.abc import Iterator

from shoal.limits.cgroup_files import CgroupFiles, Hierarchies, LimitsHost
from shoal.limits.cgroups import Cgroups, list_working_controllers
from shoal.limits.group import Counter, Dialect, Setting
from shoal.model.limits import ResourceLimits

PERIOD_US = 100_000
SHARES = 1024  # the weight of an ordinary process outside any group


def cgroup1(hierarchies: Hierarchies, files: CgroupFiles, fleet_limits: ResourceLimits | None = None) -> Cgroups | None:
    """Return the enforcer, or `None` if it cannot limit memory."""
    places = list_working_controllers(hierarchies.v1, DIALECT, files)
    return Cgroups(places, DIALECT, files, fleet_limits) if "memory" in places else None


async def build(host: LimitsHost, fleet: ResourceLimits | None) -> Cgroups | None:
    """Return the enforcer for this host, or `None` if it does not work."""
    return cgroup1(host.hierarchies, host.files, fleet)


def _limits(limits: ResourceLimits) -> tuple[Setting, ...]:
    return (*_memory(limits.memory_bytes), *_cpu(limits.cpu_percent), *_pids(limits.pids))


def _memory(most: int | None) -> Iterator[Setting]:
    if most is not None:
        yield Setting(controller="memory", file="memory.limit_in_bytes", value=str(most))
        # Memory with swap. It must not be below the limit without swap, so it is set second.
        yield Setting(controller="memory", file="memory.memsw.limit_in_bytes", value=str(most), optional=True)
        yield Setting(controller="memory", file="memory.oom_control", value="0")


def _cpu(percent: float | None) -> Iterator[Setting]:
    """Format a quota; without one the kernel's default gives the fleet fair shares."""
    if percent is not None:
        # Version 1 refuses a quota above that of an ancestor, whose own quota then applies.
        value = str(int(percent * PERIOD_US / 100))
        yield Setting(controller="cpu", file="cpu.cfs_quota_us", value=value, optional=True)


def _pids(most: int | None) -> Iterator[Setting]:
    if most is not None:
        yield Setting(controller="pids", file="pids.max", value=str(most))


DIALECT = Dialect(
    name="cgroup1",
    # A thread that moves itself waits for nobody; by `cgroup.procs` each start would take 11 ms more (Linux 6.18).
    join="tasks",
    limits=_limits,
    fleet=(
        Setting(controller="memory", file="memory.use_hierarchy", value="1", optional=True),
        # Each process of our own group weighs as much as a whole group: the fleet counts as one on every core.
        Setting(controller="cpu", file="cpu.shares", value=str(SHARES * (os.cpu_count() or 1))),
    ),
    ending=(
        Setting(controller="pids", file="pids.max", value="0"),  # so that no fork can outrun the signals
        Setting(controller="cpu", file="cpu.cfs_quota_us", value="-1"),  # a throttled process dies slowly
    ),
    freeze=Setting(controller="freezer", file="freezer.state", value="FROZEN"),
    thaw=Setting(controller="freezer", file="freezer.state", value="THAWED"),
    oom_kills=Counter(controller="memory", file="memory.oom_control", entry="oom_kill"),
    forks_refused=Counter(controller="pids", file="pids.events", entry="max"),
    memory=Counter(controller="memory", file="memory.usage_in_bytes"),
    memory_peak=Counter(controller="memory", file="memory.max_usage_in_bytes"),
    pids=Counter(controller="pids", file="pids.current"),
    cpu=Counter(controller="cpuacct", file="cpuacct.usage"),
    cpu_unit_seconds=1e-9,
    renewal=Setting(controller="memory", file="memory.max_usage_in_bytes", value="0"),
)
