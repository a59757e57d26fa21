"""The kinds of workspace by name: to add one, write its module and its line in `KINDS`."""

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from shoal.errors import BadInput, Unavailable, UnknownName

if TYPE_CHECKING:  # `pipeline` reads the names for every file, and needs nothing that opens a workspace
    from shoal.workspaces.kind import Kind, WorkspaceHost

KINDS = {
    "overlay": "shoal.workspaces.overlay",
    "worktree": "shoal.workspaces.worktree",
    "directory": "shoal.workspaces.directory",
}
AUTO = "auto"
PREFERRED = ("overlay", "worktree")
"""The candidates for `auto`: the first that works on this host."""
NAMES = (AUTO, *KINDS)


class WorkspaceModule(Protocol):
    """What the module of a kind defines."""

    STAYS: bool
    """Whether the files still exist after the session has ended and keeps its workspace."""

    async def build(self, host: "WorkspaceHost") -> "Kind":
        """Return the kind after a trial; raise `Unavailable` if this host does not support it."""


async def find(name: str, host: "WorkspaceHost", *, stays: bool = False) -> "Kind":
    """Return the kind called *name*, for workspaces that stay on disk if *stays*.

    Raises `UnknownName`, `Unavailable`, or `BadInput` for a kind whose workspaces never stay.
    """
    if name not in NAMES:
        raise UnknownName("isolation_strategy", name, NAMES)
    if name != AUTO:
        if stays and not _module(name).STAYS:
            why = f"`cleanup_on_complete: false` keeps workspaces, and {name} has no files once an agent has ended"
            raise BadInput(f"{why}; use `isolation_strategy: worktree`, or remove one of the two keys")
        return await _module(name).build(host)
    *first, last = [kind for kind in PREFERRED if _module(kind).STAYS or not stays]
    for kind in first:
        try:
            return await _module(kind).build(host)
        except Unavailable:
            continue
    return await _module(last).build(host)


def _module(name: str) -> WorkspaceModule:
    # tests/workspaces/test_find_workspace.py checks that they are such modules.
    return cast("WorkspaceModule", importlib.import_module(KINDS[name]))
