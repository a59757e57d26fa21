"""What a workspace is, whatever its kind."""

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
    """Mount layers in a sandbox, edit and delete a file there, and say whether that worked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceOrder:
    """A requested workspace at *path*, with its private files in the folder *session_dir*."""

    repository: Repository
    base: Base
    path: Path
    session_dir: Path
    branch: str
    trees: tuple[Path, ...] = ()
    """The layers to show, where what set-up made is among them; the base's own are what work is compared with."""
    pointer: bytes | None = None
    """What the file `.git` in it says, where no wall can cover that path; not every kind writes it."""
    is_mounted: bool = False
    """Whether another session left it at *path*, mounted and untouched."""
    has_own_disk: bool = False
    """Whether all of it lies on a disk that goes as a whole: then nothing has to be removed, or can serve again."""


@dataclass(slots=True, kw_only=True)
class Workspace:
    """An open workspace; what changes is only whether its files must stay or can serve again.

    *index* is the base's, with stat data that fits these files. Everything that was changed lies below *changes*.
    *layers* must be mounted in the agent's box, and *sealing* in the seal's, where the host may not mount.
    """

    path: Path
    index: Path
    changes: Path
    layers: Layers | None = None
    sealing: Layers | None = None
    covers: tuple[Bind, ...] = ()
    """What a box shows at other paths: files of the user's checkout that were asked for."""
    tools: tuple[Path, ...] = ()
    """Programs of the host that set-up used, with all they need: what it made may need them again."""
    search: tuple[Path, ...] = ()
    """Folders of those for PATH."""
    alias: Path | None = None
    """Another path at which a box shows it: the one that set-up knew it by."""
    has_pointer: bool = False
    """Whether a file `.git` of ours lies in it."""
    keep: bool = False
    stays: bool = False
    """Whether it stays mounted for another session, because nothing was changed."""
    can_recycle: bool = False
    recycled: Path | None = None
    """The index of the files as they are after recycling: then the workspace goes back to the warm pool."""

    @property
    def is_visible(self) -> bool:
        """Return whether a program on the host can read and write the files."""
        return self.layers is None

    @property
    def is_overlay(self) -> bool:
        """Return whether *changes* holds only what was changed."""
        return self.changes != self.path


class Kind(Protocol):
    """A way to give each agent files of its own."""

    @property
    def name(self) -> str:
        """The value of `isolation_strategy`."""

    @property
    def has_layers(self) -> bool:
        """Whether a private layer lies over the shared base, so that a base can be made of layers too."""

    @property
    def mounts_on_host(self) -> bool:
        """Whether the host mounts the layers, marked by attributes that only root sees."""

    @property
    def links_branch(self) -> bool:
        """Whether git of the host knows the workspace, as a linked worktree on the agent's branch."""

    @property
    def leaves_patch(self) -> bool:
        """Whether the work is handed on as a patch, because there may be no repository to have a branch in."""

    def as_unlinked(self) -> "Kind":
        """Return the kind of a workspace that only sandboxes have to see."""

    def open(self, order: WorkspaceOrder) -> AbstractAsyncContextManager[Workspace]:
        """Make the workspace, and undo it on leaving unless it is to be kept."""
