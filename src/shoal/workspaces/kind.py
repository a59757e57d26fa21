"""The protocol of workspaces and of their kinds."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.model.policy import Bind, Layers
from shoal.model.repository import Base, Repository


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceHost:
    """What a kind needs to find out whether it works on this host."""

    pool: Path
    """A folder in which a kind keeps workspaces for reuse."""
    trial: Path
    """A folder to make for a trial; the caller removes it."""
    try_layers: Callable[[Layers], Awaitable[bool]]
    """Mounts layers in a sandbox, edits and deletes a file there, and returns whether that worked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceOrder:
    """A requested workspace at *path*, with its private files in the folder *session_dir*."""

    repository: Repository
    base: Base
    path: Path
    session_dir: Path
    branch: str
    trees: tuple[Path, ...] = ()
    """The layers to show, including set-up's; work is compared with the base's own."""
    pointer: bytes | None = None
    """The content of `.git` if no sandbox can cover that path; not every kind writes it."""
    is_mounted: bool = False
    """Whether another session left it at *path*, mounted and unchanged."""
    has_own_disk: bool = False
    """Whether all of it is on a disk that is removed as a whole: then nothing is removed separately or reused."""


@dataclass(slots=True, kw_only=True)
class Workspace:
    """An open workspace; only its fate is mutable: whether its files must stay or can be reused.

    *index* is the base's, with stat data that matches these files. All changes are below *changes*. *layers* must be
    mounted in the agent's sandbox, and *sealing* in the seal's, if the host may not mount.
    """

    path: Path
    index: Path
    changes: Path
    layers: Layers | None = None
    sealing: Layers | None = None
    covers: tuple[Bind, ...] = ()
    """What a sandbox shows at other paths: requested files of the user's checkout."""
    tools: tuple[Path, ...] = ()
    """Programs of the host that set-up used, with all they need: its results may need them again."""
    search: tuple[Path, ...] = ()
    """Their folders, for PATH."""
    alias: Path | None = None
    """Another path at which a sandbox shows it: the one that set-up used."""
    has_pointer: bool = False
    """Whether it contains a file `.git` of ours."""
    keep: bool = False
    stays: bool = False
    """Whether it stays mounted for another session, because nothing was changed."""
    can_recycle: bool = False
    recycled: Path | None = None
    """The index of the files after recycling: then the workspace goes back to the pool."""

    @property
    def is_visible(self) -> bool:
        """Return whether a program on the host can read and write the files."""
        return self.layers is None

    @property
    def is_overlay(self) -> bool:
        """Return whether *changes* contains only what was changed."""
        return self.changes != self.path


class Kind(Protocol):
    """A way to give each agent files of its own."""

    @property
    def name(self) -> str:
        """The value of `isolation_strategy`."""

    @property
    def has_layers(self) -> bool:
        """Whether a private layer covers the shared base, so that a base can consist of layers too."""

    @property
    def mounts_on_host(self) -> bool:
        """Whether the host mounts the layers, with attributes that only root can see."""

    @property
    def links_branch(self) -> bool:
        """Whether the host's git knows the workspace, as a linked worktree on the agent's branch."""

    @property
    def leaves_patch(self) -> bool:
        """Whether the work is returned as a patch, because there may be no repository for a branch."""

    def as_unlinked(self) -> "Kind":
        """Return the kind for a workspace that only sandboxes have to see."""

    def open(self, order: WorkspaceOrder) -> AbstractAsyncContextManager[Workspace]:
        """Make the workspace, and undo that on exit unless it is to be kept."""
