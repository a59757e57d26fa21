"""What every kind of agent offers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shoal.model.policy import Network
from shoal.model.task import Task


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

    def invocation(self, task: Task) -> Invocation:
        """Turn *task* into the command that works on it."""
