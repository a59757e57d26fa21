"""Resolve a program's task by the rules of a file: its persona, contracts and reviewers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import BadInput, UnknownName
from shoal.model.agent import AgentSpec
from shoal.model.contract import compliance
from shoal.model.gateway import Upstream
from shoal.model.plan import Role
from shoal.model.setup import Setup, ToolFolder
from shoal.pipeline.keys.toolchains import tool_folders
from shoal.pipeline.load import Document, beside, parse
from shoal.pipeline.names import own_file
from shoal.pipeline.plan import resolve_upstreams
from shoal.pipeline.problems import BadDocument
from shoal.pipeline.resolve import MAX_SUB_AGENTS, StepResolver, system_prompt, with_persona_model
from shoal.pipeline.shape import FileShape, PersonaShape, RuntimeShape
from shoal.pipeline.templates.template import is_plain

STUB = {"adapter": "command", "command": ["true"]}
"""A placeholder for an agent that is defined elsewhere."""
PLACE = "agent-of-the-task"

AgentNamed = Callable[[str], AgentSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonaSources:
    """The sources of personas: the program's own, and those of the project's file."""

    folder: Path
    environ: Mapping[str, str]
    personas: Mapping[str, Mapping[str, object]]
    own: Document | None

    @property
    def names(self) -> tuple[str, ...]:
        """Name all personas."""
        return (*self.personas, *(self.own.shape.personas if self.own else ()))

    @property
    def agents(self) -> tuple[str, ...]:
        """Name the agents of the project's file."""
        return tuple(self.own.shape.agents) if self.own else ()

    def role(
        self, name: str, persona: str | None, words: str | None, promises: Mapping[str, object], agent: AgentNamed
    ) -> Role:
        """Resolve the task *name* with its *persona*, which may be `None`; *words* is its own system prompt."""
        step = self._step(name, promises)
        shape = PersonaShape() if persona is None else self._persona(persona)
        document = self._document(step)
        spec = with_persona_model(agent(shape.agent or ""), shape)
        settling = StepResolver(document=document, environ=self.environ)
        own = (step.shape.steps or [])[0]
        task = settling.assignment(own, (), shape, spec)
        contracts = settling.contracts(own)
        if settling.problems:
            raise BadDocument(settling.problems)
        prompt = words if words is not None else self._words(persona)
        offered = min(own.max_concurrent_agents, MAX_SUB_AGENTS)
        full_prompt = system_prompt(prompt, compliance(contracts), offered, task.permissions)
        artifacts = tuple(artifact.given for artifact in own.output_artifacts)
        return Role(
            task=replace(task, system_prompt=full_prompt),
            artifacts=artifacts,
            contracts=contracts,
            reviewers=settling.reviewers,
        )

    def surroundings(self, setup: object, toolchains: object) -> tuple[Setup | None, tuple[ToolFolder, ...]]:
        """Return the setup and toolchains: as given, else those of the file."""
        given = {"setup": setup, "toolchains": toolchains}
        runtime = {key: value for key, value in given.items() if value is not None}
        written = [_parse({"runtime": runtime}, "coordinator", self.folder)] if runtime else []
        found = [
            StepResolver(document=document, environ=self.environ)
            for document in (*written, *([self.own] if self.own else []))
        ]
        folders = next((tools for settling in found if (tools := tool_folders(settling))), ())
        ready = next(
            (settling.setup() for settling in found if settling.document.shape.runtime.setup is not None), None
        )
        if problems := [problem for settling in found for problem in settling.problems]:
            raise BadDocument(problems)
        return ready, folders

    def upstreams(self) -> tuple[Upstream, ...]:
        """Return the models that the project's file names."""
        if self.own is None:
            return ()
        settling = StepResolver(document=self.own, environ=self.environ)
        found = resolve_upstreams(settling)
        if settling.problems:
            raise BadDocument(settling.problems)
        return found

    def _step(self, name: str, promises: Mapping[str, object]) -> Document:
        """Read the task's promises like a step of a file; reviewers may be any that the project's file defines."""
        shape = self.own.shape if self.own else FileShape()
        agents = {**dict.fromkeys(shape.agents, STUB), PLACE: STUB}
        personas = {known: {"agent": PLACE} for known in shape.personas}
        step = {"name": name, "agent": PLACE, "prompt": "-", **promises}
        return _parse({"agents": agents, "personas": personas, "steps": [step]}, f"task {name}", self.folder)

    def _document(self, step: Document) -> Document:
        """Put the step beside the agents and personas of the project's file, without its `runtime`."""
        if self.own is None:
            return replace(step, shape=step.shape.model_copy(update={"agents": {}, "personas": {}}))
        shape = self.own.shape.model_copy(update={"runtime": RuntimeShape()})
        return replace(self.own, shape=shape, schemas={**self.own.schemas, **step.schemas})

    def _persona(self, name: str) -> PersonaShape:
        if name in self.personas:
            return self._read(name).shape.personas[name]
        if self.own is None or name not in self.own.shape.personas:
            raise UnknownName("persona", name, self.names)
        return self.own.shape.personas[name]

    def _words(self, name: str | None) -> str:
        if name is None:
            return ""
        document = self._read(name) if name in self.personas or self.own is None else self.own
        words = document.system_prompts[name]
        if not is_plain(words):
            raise BadInput(f"the system prompt of {name!r} contains placeholders, which only a pipeline can fill in")
        return words

    def _read(self, name: str) -> Document:
        fields = dict(self.personas[name])
        agent = fields.pop("agent", None)  # any kind of agent that a task may name; the roster finds it
        known = {"agents": {agent: STUB}} if isinstance(agent, str) else {}
        persona = {**fields, "agent": agent} if isinstance(agent, str) else fields
        return _parse({**known, "personas": {name: persona}}, f"persona {name}", self.folder)


def _parse(content: Mapping[str, object], name: str, folder: Path) -> Document:
    try:
        text = json.dumps(content)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name} is described by a value that is not plain: {error}") from None
    return parse(text, name, read=beside(own_file(folder)))
