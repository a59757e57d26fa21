"""A repository as a value: everything that is needed before an agent starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity for commits."""

    name: str
    email: str
    date: int | None = None
    """The date of every commit, in a run that is recorded or replayed; `None` is the time at which it is made."""

    @property
    def dates(self) -> dict[str, str]:
        """Variables that give git the date, where there is one."""
        names = ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE")
        return {} if self.date is None else dict.fromkeys(names, f"@{self.date} +0000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """The repository at the path that the user gave.

    *top* is the user's checkout, *home* the folder that holds `.shoal`, *git* the common gitdir.
    *lenders* is the whole chain of object folders, the repository's own first.
    *settings* are the configuration keys that a checkout depends on, and no others.
    """

    top: Path
    home: Path
    git: Path
    lenders: tuple[Path, ...]
    object_format: str
    is_shallow: bool
    promisor: str | None
    settings: Mapping[str, str]
    identity: Identity
    branch: str | None

    @property
    def digits(self) -> int:
        """The length of an object name."""
        return 64 if self.object_format == "sha256" else 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A commit, checked out once: *tree* is never changed, and *index* has its stat data.

    *objects* has exactly the objects that the commit reaches, which sandboxes may read.

    If *below* is not empty, *tree* is only a layer on top of those.
    """

    commit: str
    tree: Path
    objects: Path
    index: Path
    files: int
    bytes: int = 0
    below: tuple[Path, ...] = ()
    over: "Base | None" = None
    """The base below this layer."""

    @property
    def bottom(self) -> "Base":
        """The whole checkout at the bottom."""
        return self if self.over is None else self.over.bottom

    @property
    def trees(self) -> tuple[Path, ...]:
        """All layers, the topmost first."""
        return (self.tree, *self.below)
