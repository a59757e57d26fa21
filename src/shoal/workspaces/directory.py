"""Directory: a plain copy of the base's files, for hosts and projects where no other kind works."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from shoal import proc
from shoal.errors import Broken
from shoal.model.command import Command
from shoal.workspaces.kind import Workspace, WorkspaceHost, WorkspaceOrder
from shoal.workspaces.remove import remove_all

TIMEOUT = 600.0
STAYS = True


@dataclass(frozen=True, slots=True)
class Directory:
    """A copy per agent; the copy shares blocks where the file system can."""

    has_layers: bool = field(default=False, init=False, repr=False)
    mounts_on_host: bool = field(default=False, init=False, repr=False)
    links_branch: bool = field(default=False, init=False, repr=False)
    leaves_patch: bool = field(default=True, init=False, repr=False)

    @property
    def name(self) -> str:
        return "directory"

    def as_unlinked(self) -> "Directory":
        """Return itself: the host sees the files in any case."""
        return self

    @contextlib.asynccontextmanager
    async def open(self, order: WorkspaceOrder) -> AsyncIterator[Workspace]:
        """Copy the base's files to the workspace."""
        order.path.mkdir(parents=True, exist_ok=True)
        workspace = Workspace(path=order.path, index=order.base.index, changes=order.path)
        try:
            await _copy(order.base.tree, order.path)
            yield workspace
        finally:
            if not workspace.keep and not order.has_own_disk:
                await remove_all(order.path)


async def build(_host: WorkspaceHost) -> Directory:
    """Return it: every host can copy files."""
    return Directory()


async def _copy(source: Path, target: Path) -> None:
    argv = ("cp", "-a", "--reflink=auto", "--", f"{source}/.", str(target))
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
    done = await proc.run(Command(argv=argv, cwd=Path("/"), env=env), timeout=TIMEOUT)
    if not done.ok:
        raise Broken(f"cannot copy {source} to {target}: {done.stderr.decode(errors='replace').strip()[-300:]}")
