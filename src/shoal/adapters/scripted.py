"""A scripted agent: the same actions each time, for demonstrations and for tests."""

from dataclasses import dataclass
from pathlib import Path

from shoal.adapters.kind import Invocation, SessionPaths
from shoal.errors import BadInput
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

SYSTEM = Path("/usr")  # shown in every box


@dataclass(frozen=True, slots=True)
class Scripted:
    """Run *program* (`scripted_agent.py`) with the interpreter *python*, a path without links, 3.9 or newer."""

    python: Path
    program: Path
    name: str = "scripted"
    default_network: Network = Network.NONE
    client: None = None

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Hand the script over on stdin, for an argument may not be longer than 128 KiB."""
        if task.agent.script is None:
            raise BadInput(f"agent {task.agent.name!r} has no script; list its actions")
        argv = (str(self.python), "-I", "-S", str(self.program))
        return Invocation(argv=argv, stdin=task.agent.script.encode(), needs=(self.program, *self._interpreter()))

    def reader(self) -> None:
        """Take its output as plain words."""

    def _interpreter(self) -> tuple[Path, ...]:
        # not the whole prefix: of a Python built with --prefix=$HOME that is the user's home
        return () if self.python.is_relative_to(SYSTEM) else (self.python, self.python.parent.parent / "lib")
