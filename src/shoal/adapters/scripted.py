"""A scripted agent with fixed actions, for demonstrations and tests."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.adapters.events import event, last_line, plain
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.errors import BadInput
from shoal.model.activity import Activity
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

SYSTEM = Path("/usr")  # shown in every sandbox
WAITING = {"shoal": "receive"}
"""What `scripted_agent.py` says when it waits for a message."""


@dataclass(slots=True)
class ScriptReader:
    """Reads plain text, and notices when the script waits for a message."""

    is_between_turns: bool = False
    is_done: bool = False
    usage: Mapping[str, float] = field(default_factory=dict)
    session: None = None

    def read(self, line: str) -> Iterable[Activity]:
        """Return every line but the one that marks a wait."""
        self.is_between_turns = event(line) == WAITING
        return () if self.is_between_turns else plain(line)

    def begin_turn(self) -> None:
        """Let the script go on."""
        self.is_between_turns = False

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Judge the script by its exit code."""
        if exit_code == 0:
            return None
        reason = last_line(errors)
        how = "it was ended" if exit_code is None else f"it exited with {exit_code}"
        return f"{how}: {reason}" if reason else how


@dataclass(frozen=True, slots=True)
class Scripted:
    """Run *program* (`scripted_agent.py`) with the interpreter *python*, a path without links, 3.9 or newer."""

    python: Path
    program: Path
    name: str = "scripted"
    default_network: Network = Network.NONE
    client: None = None

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the script on stdin, because an argument is limited to 128 KiB."""
        if task.agent.script is None:
            raise BadInput(f"agent {task.agent.name!r} has no script; list its actions")
        argv = (str(self.python), "-I", "-S", str(self.program))
        is_live, needs = self.takes_messages(task), (self.program, *self._interpreter())
        script = task.agent.script.encode() + (b"\n" if is_live else b"")
        return Invocation(argv=argv, stdin=script, needs=needs, is_live=is_live)

    def reader(self) -> None:
        """Return no reader: its output is plain text."""

    def takes_messages(self, task: ResolvedTask) -> bool:
        """Accept one message for each `receive` of the script."""
        return any("receive" in action for action in json.loads(task.agent.script or "[]"))

    def message(self, text: str) -> bytes:
        """Format a message as one line."""
        return json.dumps({"message": text}).encode() + b"\n"

    def turn_reader(self) -> ScriptReader:
        """Read when it waits."""
        return ScriptReader()

    def _interpreter(self) -> tuple[Path, ...]:
        # not the whole prefix: of a Python built with --prefix=$HOME that is the user's home
        return () if self.python.is_relative_to(SYSTEM) else (self.python, self.python.parent.parent / "lib")
