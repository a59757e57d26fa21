"""How a run is merged automatically: strategy, verification and conflict rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.model.contract import CommandContract
from shoal.model.merge import Strategy


class ConflictRule(StrEnum):
    """What to do with work that cannot be merged."""

    REPORT = "report"
    """Report it to a person."""
    AGENT = "agent"
    """Give both sides to an agent; its result counts if no conflict markers are left and it is verified."""
    REDO = "redo"
    """Run the task again, on the others' work."""
    OURS = "ours"
    """On conflicting lines, keep those that landed before."""
    THEIRS = "theirs"
    """On conflicting lines, keep the later ones."""

    @property
    def is_favour(self) -> bool:
        """Return whether one side simply wins."""
        return self in (ConflictRule.OURS, ConflictRule.THEIRS)


def verification(command: str | Sequence[str], timeout: float | None = None) -> CommandContract:
    """Return the command that must exit with 0 on the merged work; a string is for the shell."""
    words = command if isinstance(command, str) else tuple(command)
    return CommandContract(type="verify", command=words, timeout=timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """How to merge the work of a run at its end."""

    strategy: Strategy = Strategy.REVIEW
    into: str | None = None
    """The user's branch to deliver into; `None` leaves the work on the branch of the run."""
    verify: CommandContract | None = None
    on_conflict: ConflictRule = ConflictRule.REPORT
    resolver_agent: str | None = None
    resolver_persona: str | None = None
    allow_executable_config: bool = False
    """Whether to merge work that changes files that run on a person's machine."""
    allow_secrets: bool = False
    """Whether to merge work that contains secrets."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The positions of keys in the user's file, like `shoal.yaml:3:5`."""

    @property
    def resolver(self) -> str | None:
        """Name the resolver, as reviewers are named; a persona and an agent may have the same name."""
        if self.resolver_persona is not None:
            return f"persona {self.resolver_persona}"
        return None if self.resolver_agent is None else f"agent {self.resolver_agent}"
