"""The kinds of sandbox by name: to add one, write its module and its line in `KINDS`."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

from shoal.errors import UnknownName
from shoal.model.command import Command

if TYPE_CHECKING:  # `pipeline` reads the names for every file, and needs none of what builds a sandbox
    from shoal.sandboxes.host import SandboxHost
    from shoal.sandboxes.kind import Sandbox

KINDS = {
    "bubblewrap": "shoal.sandboxes.bubblewrap",
    "landlock": "shoal.sandboxes.landlock",
    "none": "shoal.sandboxes.none",
}
DEFAULT = "bubblewrap"


class SandboxModule(Protocol):
    """What the module of a kind defines."""

    CONFINES: bool
    """Whether it keeps an agent from anything at all."""

    def trials(self, host: "SandboxHost") -> Mapping[str, Command]:
        """Return the commands that show whether it works here, by a name for each."""

    def build(self, host: "SandboxHost") -> "Sandbox":
        """Build it from the inspected host; raise `Unavailable` if this host does not support it."""


def trials(host: "SandboxHost", name: str | None = None) -> dict[str, Command]:
    """Return the commands that show which kinds work on *host*; with *name*, only those of that kind.

    Run them all, in any order, and pass on how they ended: `host.with_trials({name: Trial(...)})`.
    """
    names = KINDS if name is None else [name] if name in KINDS else []
    return {key: command for kind in names for key, command in _module(kind).trials(host).items()}


def find(name: str, host: "SandboxHost") -> "Sandbox":
    """Return the sandbox called *name*; raise `UnknownName`, or `Unavailable` if this host does not support it."""
    return _module(name).build(host)


def confines(name: str) -> bool:
    """Return whether the kind called *name* keeps an agent from anything."""
    return _module(name).CONFINES


def _module(name: str) -> SandboxModule:
    if name not in KINDS:
        raise UnknownName("sandbox", name, KINDS)
    return cast("SandboxModule", importlib.import_module(KINDS[name]))  # tests/sandboxes/test_registry.py checks it
