"""An in-process agent: only the commands of its tools run in the sandbox."""

from dataclasses import dataclass

from shoal.adapters.kind import Invocation, SessionPaths
from shoal.errors import BadInput
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True)
class Python:
    """Calls the model from this process; only tools run in the sandbox."""

    name: str = "python"
    default_network: Network = Network.NONE
    client: None = None

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Name the shell that the tools need; it is never started by itself."""
        if task.agent.mind is None and task.agent.made is None:
            raise BadInput(f"agent {task.agent.name!r} has no model; name one, or give a `shoal.Agent`")
        return Invocation(argv=(SHELL,), stdin=b"")

    def reader(self) -> None:
        """Return no reader: its output is plain text."""
