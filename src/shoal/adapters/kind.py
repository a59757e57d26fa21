"""What every kind of agent offers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shoal.model.assignment import Assignment
from shoal.model.policy import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """How an agent is started; *needs* are paths of the host that must be readable behind the wall."""

    argv: tuple[str, ...]
    stdin: bytes = field(repr=False)
    needs: tuple[Path, ...] = ()


class Adapter(Protocol):
    """One kind of agent."""

    @property
    def name(self) -> str:
        """Return the name by which documents ask for it."""

    @property
    def default_network(self) -> Network:
        """Return the network it is on where nobody says another."""

    def invocation(self, task: Assignment) -> Invocation:
        """Turn *task* into the command that works on it.

        A client that knows rules for its tools is given those of `task.permitted`; all others find them, like the rest
        of the permissions, in SHOAL_PERMISSIONS_FILE. What a rule does not hold, the wall does.
        """
