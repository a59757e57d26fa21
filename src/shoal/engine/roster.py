"""Who can do the work: the agents that tasks name, and the one for tasks that name none."""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.engine.function import function_agent
from shoal.errors import BadInput, UnknownName
from shoal.model.agent import AgentSpec
from shoal.model.client_names import CLIENTS
from shoal.model.task import AgentLike, InProcess, Task, Variable
from shoal.pipeline.names import slug
from shoal.pipeline.own_file import OWN_FILE, own_file

if TYPE_CHECKING:
    from shoal.pipeline.load import Document

MOST_READ = 256
REMEDY = "give `agent=` to the task or to the coordinator"


class Roster:
    """Agents by their names: those of the program first, then those of the project's `shoal.yaml`."""

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        default: AgentLike | None,
        named: Mapping[str, AgentLike],
        *,
        remedy: str = REMEDY,
    ) -> None:
        self._folder = folder
        self._environ = environ
        self._default = default
        self._named = dict(named)
        self._remedy = remedy
        self._read: dict[str, AgentSpec] = {}

    def agent(self, task: Task, private: tuple[Path, ...]) -> AgentSpec:
        """Give the agent for *task*; raise `BadInput` where there is none, or none of that name."""
        wanted = task.agent if task.agent is not None else self._default
        return self._only() if wanted is None else self._spec(wanted, private)

    def variables(self, env: Mapping[str, Variable] | None) -> tuple[dict[str, str], frozenset[str]]:
        """Read a task's variables: those of the form `{"from": NAME}` are the host's, and secrets."""
        values: dict[str, str] = {}
        secret: set[str] = set()
        for name, value in (env or {}).items():
            match value:
                case str():
                    values[name] = value
                case {"from": str(source)} if source in self._environ:
                    values[name] = self._environ[source]
                    secret.add(name)
                case {"from": str(source)}:
                    raise BadInput(f"the host has no variable {source!r}; set it, or give {name} a value")
                case _:
                    raise BadInput(f"variable {name!r:.60} must be a text or {{'from': HOST_NAME}}")
        return values, frozenset(secret)

    def _spec(self, wanted: AgentLike, private: tuple[Path, ...]) -> AgentSpec:
        match wanted:
            case AgentSpec():
                return wanted
            case str():
                return self._by_name(wanted, private)
            case Mapping():
                return self._described(wanted)
            case InProcess():
                return AgentSpec(name=slug(wanted.name or "", otherwise="agent"), adapter="python", made=wanted)
            case _ if callable(wanted):
                return function_agent(wanted, private)
        raise BadInput(f"{wanted!r:.60} is no agent; give a name, a mapping with `adapter`, an Agent, or a function")

    def _described(self, wanted: Mapping[str, object]) -> AgentSpec:
        """Read a description once: a stream of commands says the same again and again, and YAML is slow."""
        text = repr(wanted)
        if text not in self._read:
            if len(self._read) >= MOST_READ:
                self._read.clear()
            self._read[text] = described(wanted, self._environ)
        return self._read[text]

    def _by_name(self, name: str, private: tuple[Path, ...]) -> AgentSpec:
        if name in self._named:
            return self._spec(self._named[name], private)
        from shoal.pipeline.plan import agent

        document = self._document()
        known = document.shape.agents if document else {}
        if name not in known and name in CLIENTS:
            return AgentSpec(name=name, adapter=name)
        if document is None or name not in known:
            if known or self._named or difflib.get_close_matches(name, CLIENTS, n=1):
                raise UnknownName("agent", name, (*self._named, *known, *CLIENTS))
            raise self._nobody(name)
        return agent(document, name, environ=self._environ)

    def _nobody(self, name: str) -> BadInput:
        where = f"there is no {OWN_FILE} in {self._folder.resolve()} that could say what it is"
        return BadInput(f"no agent named {name!r}: {where}; write one with `agents:`, or {self._remedy}")

    def _only(self) -> AgentSpec:
        document = self._document()
        known = list(document.shape.agents) if document else []
        if len(known) != 1:
            there = f"{OWN_FILE} has {len(known)}" if document else f"there is no {OWN_FILE}"
            raise BadInput(f"no agent: the task names none, and {there}; {self._remedy}")
        return self._by_name(known[0], ())

    def _document(self) -> "Document | None":
        from shoal.pipeline.load import load

        own = own_file(self._folder)
        return load(own) if own.is_file() else None


def described(agent: Mapping[str, object], environ: Mapping[str, str]) -> AgentSpec:
    """Read an agent from a mapping, by the rules that hold for one in a file."""
    from shoal.pipeline.load import parse
    from shoal.pipeline.plan import agent as planned

    fields = {key: value for key, value in agent.items() if key != "name"}
    name = str(agent.get("name", agent.get("adapter", "agent")))
    try:
        text = json.dumps({"agents": {name: fields}})
    except (TypeError, ValueError) as error:
        raise BadInput(f"the agent {name!r:.60} is described by something that is no plain value: {error}") from None
    return planned(parse(text, f"agent {name}"), name, environ=environ)
