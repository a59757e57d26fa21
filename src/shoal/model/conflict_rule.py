"""How a run is merged automatically: strategy, verification and conflict rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.model.contract import CommandContract
from shoal.model.merge import Strategy


class ConflictRule(StrEnum):
    """What is done with work that cannot be merged as it is."""

    REPORT = "report"
    """A person is told."""
    AGENT = "agent"
    """An agent is given both sides, and its result counts if it has no markers left and is verified."""
    REDO = "redo"
    """The task is done again, on what the others made."""
    OURS = "ours"
    """Where both changed the same lines, those that landed before stay."""
    THEIRS = "theirs"
    """Where both changed the same lines, those that come later count."""

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
    """How the work of a run is merged when it has ended."""

    strategy: Strategy = Strategy.REVIEW
    into: str | None = None
    """The branch of the user's that it is delivered into; `None` leaves it on the branch of the run."""
    verify: CommandContract | None = None
    on_conflict: ConflictRule = ConflictRule.REPORT
    resolver_agent: str | None = None
    resolver_persona: str | None = None
    allow_executable_config: bool = False
    """Whether work that changes what runs on a person's machine is merged too."""
    allow_secrets: bool = False
    """Whether work that has secrets in it is merged too."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where keys stand in the user's file, like `shoal.yaml:3:5`."""

    @property
    def resolver(self) -> str | None:
        """Name who resolves conflicts, as reviewers are named; a persona and an agent may have the same name."""
        if self.resolver_persona is not None:
            return f"persona {self.resolver_persona}"
        return None if self.resolver_agent is None else f"agent {self.resolver_agent}"
