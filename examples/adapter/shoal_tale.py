"""An adapter for a client that reports what it does as JSON lines (here a shell script in place of a real client)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.adapters.client import Client
from shoal.adapters.events import event, number, plain, words
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.model.activity import Act, Activity
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

SCRIPT = """
cat > tale.txt
printf '%s' '{"tool": "write", "path": "tale.txt"}' '{"say": "written by '"$TALE_MODEL"'"}' \
    '{"done": true, "tokens": [12, 3]}' | sed 's/}{/}\\n{/g'
"""


CLIENT = Client(program="sh", install="apt install dash", login="", needs_login=False, knows=("model", "usage"))


@dataclass(frozen=True, slots=True)
class Tale:
    """Runs the script with the prompt on stdin."""

    name: str = "tale"
    default_network: Network = Network.NONE
    client: Client = CLIENT

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the system prompt and the prompt on stdin."""
        prompt = f"{task.system_prompt}\n\n{task.prompt}"
        program = task.agent.command or (self.client.program,)
        env = {"TALE_MODEL": task.agent.model or "nobody"}
        return Invocation(argv=(*program, "-c", SCRIPT, *task.agent.args), stdin=prompt.encode(), env=env)

    def reader(self) -> "TaleReader":
        """Return a reader for the output of one session."""
        return TaleReader()


class TaleReader:
    """Turns the client's JSON lines into activities."""

    def __init__(self) -> None:
        self._usage: dict[str, float] = {}
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """Whether the client has reported its end."""
        return self._is_done

    @property
    def usage(self) -> Mapping[str, float]:
        """Tokens that the client reported."""
        return self._usage

    @property
    def session(self) -> None:
        """The client has no name for its session."""

    def read(self, line: str) -> Iterable[Activity]:
        """Return the activities of one line."""
        match event(line):
            case {"say": str(text)}:
                return [Activity(act=Act.SAID, text=text)]
            case {"tool": str(tool), **rest}:
                return [Activity(act=Act.TOOL, tool=tool, text=words(rest.get("path")))]
            case {"done": True, "tokens": [read, written]}:
                self._is_done = True
                self._usage = {"input_tokens": number(read), "output_tokens": number(written)}
                return []
            case _:
                return plain(line)

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Trust only the client's own report, never its exit code."""
        return None if self._is_done else f"it never reported its end: {json.dumps(errors[-200:])}"
