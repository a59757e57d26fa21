"""Which enforcement a name stands for, and which this host has: found out by trying."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shoal import proc
from shoal.errors import ShoalError, Unavailable, UnknownName
from shoal.limits import control_files as mounts
from shoal.limits.cgroup1 import cgroup1
from shoal.limits.cgroup2 import cgroup2
from shoal.limits.control_files import Files, Hierarchies
from shoal.limits.kind import Enforcer
from shoal.limits.polling import Polling
from shoal.limits.systemd import systemd, trial
from shoal.model.limits import ResourceLimits

TRIAL_SECONDS = 10.0
REMEDY = "leave the choice to `auto`, or hand a control group with memory, pids and cpu to this user"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsHost:
    """Where to look for enforcement."""

    hierarchies: Hierarchies = field(default_factory=mounts.look)
    files: Files = field(default_factory=Files)


async def choose(name: str = "auto", fleet: ResourceLimits | None = None, host: LimitsHost | None = None) -> Enforcer:
    """Give the enforcement of that name, or the best there is; raise `UnknownName` or `Unavailable`."""
    if name not in ("auto", *KINDS):
        raise UnknownName("enforcement of limits", name, ("auto", *KINDS))
    place = host or LimitsHost()
    for kind in KINDS if name == "auto" else (name,):
        if enforcer := await KINDS[kind](place, fleet):
            return enforcer
    raise Unavailable(f"enforcement of limits by {name}", "a trial of it failed", REMEDY)


async def _cgroup2(host: LimitsHost, fleet: ResourceLimits | None) -> Enforcer | None:
    return cgroup2(host.hierarchies, host.files, fleet)


async def _cgroup1(host: LimitsHost, fleet: ResourceLimits | None) -> Enforcer | None:
    return cgroup1(host.hierarchies, host.files, fleet)


async def _systemd(host: LimitsHost, _fleet: ResourceLimits | None) -> Enforcer | None:
    command = trial(host.hierarchies.mount)
    if command is None:
        return None
    try:
        done = await proc.run(command, timeout=TRIAL_SECONDS)
    except (ShoalError, TimeoutError):
        return None
    return systemd(done.stdout.decode(errors="replace"), host.files) if done.ok else None


async def _polling(_host: LimitsHost, _fleet: ResourceLimits | None) -> Enforcer | None:
    return Polling()


KINDS: dict[str, Callable[[LimitsHost, ResourceLimits | None], Awaitable[Enforcer | None]]] = {
    "cgroup2": _cgroup2,
    "cgroup1": _cgroup1,
    "systemd": _systemd,
    "polling": _polling,
}
"""Best first."""
