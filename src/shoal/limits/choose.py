"""The kinds of enforcement by name, best first: to add one, write its module and its line in `KINDS`."""

import importlib
from typing import Protocol, cast

from shoal.errors import Unavailable, UnknownName
from shoal.limits.cgroup_files import LimitsHost
from shoal.limits.kind import Enforcer
from shoal.model.limits import ResourceLimits

KINDS = {
    "cgroup2": "shoal.limits.cgroup2",
    "cgroup1": "shoal.limits.cgroup1",
    "systemd": "shoal.limits.systemd",
    "polling": "shoal.limits.polling",
}
REMEDY = "leave the choice to `auto`, or hand a control group with memory, pids and cpu to this user"


class LimitsModule(Protocol):
    """What the module of a kind defines."""

    async def build(self, host: LimitsHost, fleet: ResourceLimits | None) -> Enforcer | None:
        """Return the enforcer after a trial, or `None` if it does not work; *fleet* limits all agents together."""


async def choose(name: str = "auto", fleet: ResourceLimits | None = None, host: LimitsHost | None = None) -> Enforcer:
    """Return the enforcement called *name*, or the best that works here; raise `UnknownName` or `Unavailable`."""
    if name not in ("auto", *KINDS):
        raise UnknownName("enforcement of limits", name, ("auto", *KINDS))
    for kind in KINDS if name == "auto" else (name,):
        module = cast(
            "LimitsModule", importlib.import_module(KINDS[kind])
        )  # tests/limits/test_limit_kinds.py checks it
        if enforcer := await module.build(host or LimitsHost(), fleet):
            return enforcer
    raise Unavailable(f"enforcement of limits by {name}", "a trial of it failed", REMEDY)
