"""A Python function as an agent, in its own sandboxed process."""

import json
from dataclasses import dataclass
from pathlib import Path

from shoal.adapters.kind import Invocation, SessionPaths
from shoal.errors import BadInput
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask


@dataclass(frozen=True, slots=True)
class Function:
    """Run *program* (`function_agent.py`) with *python*, the interpreter that the function belongs to."""

    python: Path
    program: Path
    name: str = "function"
    default_network: Network = Network.NONE
    client: None = None

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the function's source and the prompt on stdin."""
        if task.agent.script is None:
            raise BadInput(f"agent {task.agent.name!r} has no function; give one from Python, as `agent=`")
        order = json.loads(task.agent.script)
        needs = tuple(map(Path, order["needs"]))
        stdin = json.dumps({**order, "prompt": task.prompt}).encode()
        # -B: what it imports from its workspace must not leave bytecode there, which would count as its work.
        argv = (str(self.python), "-I", "-B", str(self.program))
        return Invocation(argv=argv, stdin=stdin, needs=(self.program, *needs))

    def reader(self) -> None:
        """Return no reader: its output is plain text."""
