"""An adapter for a client that tells what it does as JSON lines: a shell script here, in the place of a real one."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.adapters.client import Client
from shoal.adapters.events import event, number, plain, words
from shoal.adapters.kind import Invocation, Place
from shoal.model.activity import Act, Activity
from shoal.model.assignment import Assignment
from shoal.model.policy import Network

SCRIPT = """
cat > tale.txt
printf '%s' '{"tool": "write", "path": "tale.txt"}' '{"say": "written by '"$TALE_MODEL"'"}' \
    '{"done": true, "tokens": [12, 3]}' | sed 's/}{/}\\n{/g'
"""


CLIENT = Client(program="sh", install="apt install dash", login="", needs_login=False, knows=("model", "usage"))


@dataclass(frozen=True, slots=True)
class Tale:
    """Runs the script, with the prompt on its standard input."""

    name: str = "tale"
    default_network: Network = Network.NONE
    client: Client = CLIENT

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Hand over the prompt with the persona's words before it."""
        asked = f"{task.system_prompt}\n\n{task.prompt}"
        program = task.agent.command or (self.client.program,)
        env = {"TALE_MODEL": task.agent.model or "nobody"}
        return Invocation(argv=(*program, "-c", SCRIPT, *task.agent.args), stdin=asked.encode(), env=env)

    def reader(self) -> "TaleReader":
        """Read what one client says."""
        return TaleReader()


class TaleReader:
    """Reads the client's lines by their keys."""

    def __init__(self) -> None:
        self._usage: dict[str, float] = {}
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """It has told its own end."""
        return self._is_done

    @property
    def usage(self) -> Mapping[str, float]:
        """What it spent."""
        return self._usage

    @property
    def session(self) -> None:
        """It has no name for its conversation."""

    def read(self, line: str) -> Iterable[Activity]:
        """Turn one line into what it tells."""
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
        """Believe only its own end."""
        return None if self._is_done else f"it never told its end: {json.dumps(errors[-200:])}"
