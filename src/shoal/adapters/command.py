"""Any command as an agent: the prompt is its standard input."""

from dataclasses import dataclass

from shoal.adapters.kind import Invocation, SessionPaths
from shoal.errors import BadInput
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask


@dataclass(frozen=True, slots=True)
class CommandAdapter:
    """Run the agent's own argv, never through a shell of ours."""

    name: str = "command"
    default_network: Network = Network.NONE
    client: None = None

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the prompt on stdin."""
        if not task.agent.command:
            raise BadInput(f"agent {task.agent.name!r} has no command; say what to run")
        return Invocation(argv=task.agent.command, stdin=task.prompt.encode())

    def reader(self) -> None:
        """Return no reader: its output is plain text."""
