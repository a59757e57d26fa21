"""What `shoal clean` may find, and what of it could be work."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Sort(StrEnum):
    """What kind of thing was found."""

    KILLED = "killed run"
    LEFTOVER = "leftover"
    POOL = "warm worktree"
    BASE = "base checkout"
    OBJECTS = "object store"
    SETUP = "set-up"
    RAW = "raw files"
    CHECKPOINTS = "checkpoints"
    OPENED = "opened worktree"
    CONVERSATION = "conversation"
    LOG = "log"
    RESULT = "patch"
    ARTIFACTS = "artifact"
    BRANCH = "merged branch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing on disk; what no ref holds, or what a person opened, goes only by force."""

    sort: Sort
    path: Path
    size_bytes: int = 0

    @property
    def needs_force(self) -> bool:
        """Say whether removing it could lose work."""
        return self.sort in (Sort.RAW, Sort.OPENED)

    @property
    def is_record(self) -> bool:
        """Say whether it is what a session left to be read: that goes by its age, and only when asked for."""
        return self.sort in (Sort.LOG, Sort.RESULT, Sort.ARTIFACTS)
