"""What a workspace is, whatever its kind."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.model.policy import Layers
from shoal.model.repository import Base, Repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A workspace that is wanted: at *path*, with everything private to it in the folder *box*."""

    repository: Repository
    base: Base
    path: Path
    box: Path
    branch: str
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
    keep: bool = False
    can_recycle: bool = False
    recycled: Path | None = None
    """The index of the files as they are after recycling: then the workspace goes back to the warm pool."""

    @property
    def is_visible(self) -> bool:
        """Say whether a program on the host can read and write the files."""
        return self.layers is None

    @property
    def is_overlay(self) -> bool:
        """Say whether *changes* holds only what was changed."""
        return self.changes != self.path


class Kind(Protocol):
    """A way to give each agent files of its own."""

    @property
    def name(self) -> str:
        """The value of `isolation_strategy`."""

    def opened(self, order: Order) -> AbstractAsyncContextManager[Workspace]:
        """Make the workspace, and undo it on leaving unless it is to be kept."""
