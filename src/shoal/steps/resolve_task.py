"""Resolve a task: find its agent, and apply the defaults of the program and the project."""

import difflib
import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from shoal.errors import BadInput, UnknownName
from shoal.model.agent import CLIENTS, AgentSpec
from shoal.model.budget import SpendingLimit
from shoal.model.gateway import Upstream
from shoal.model.limits import ResourceLimits
from shoal.model.matrix import draw_cycle
from shoal.model.nodes import read_labels
from shoal.model.permissions import Permissions, effective
from shoal.model.plan import Role, Stage, Step
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.retry import Retry
from shoal.model.setup import Setup
from shoal.model.talk import TalkGrant, helper_name
from shoal.model.task import AgentLike, InProcess, Task, Variable
from shoal.pipeline.keys.duration import seconds
from shoal.pipeline.names import OWN_FILE, make_label, own_file, slug
from shoal.sessions.clients import ready_clients
from shoal.sessions.function_thread import function_agent
from shoal.steps.prompt import briefing

if TYPE_CHECKING:
    from shoal.pipeline.load import Document
    from shoal.pipeline.task_step import PersonaSources

MOST_READ = 256
REMEDY = "give `agent=` to the task or to the coordinator"


class AgentDirectory:
    """Agents by name: those of the program first, then those of the project's `shoal.yaml`."""

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        default: AgentLike | None,
        named: Mapping[str, AgentLike],
        *,
        personas: Mapping[str, Mapping[str, object]] | None = None,
        remedy: str = REMEDY,
        takes_ready_client: bool = False,
    ) -> None:
        self._folder = folder
        self._environ = environ
        self._default = default
        self._named = dict(named)
        self._personas = dict(personas or {})
        self._remedy = remedy
        self._takes_ready_client = takes_ready_client
        self._taken: str | None = None
        self._read: dict[str, AgentSpec] = {}

    def role(self, task: Task, private: tuple[Path, ...]) -> Role:
        """Return the agent for *task* and its persona; raise `BadInput` for an unknown name."""
        persona, words = task.persona, task.system_prompt
        wanted = self._default if task.agent is None and persona is None else task.agent
        if isinstance(wanted, Mapping) and "system_prompt" in wanted:
            words = str(wanted["system_prompt"]) if words is None else words
            wanted = {key: value for key, value in wanted.items() if key != "system_prompt"}
        if persona is None and isinstance(wanted, str) and self._is_persona(wanted):
            wanted, persona = None, wanted

        def find_agent(name: str) -> AgentSpec:
            own = self._personas.get(persona or "", {}).get("agent") or name or None
            chosen = wanted if wanted is not None else own if own is not None else self._default
            return self._only() if chosen is None else self._spec(chosen, private)  # type: ignore[arg-type]  # checked there

        if persona is None and words is None and not task.promises:
            return Role(task=ResolvedTask(name="", prompt="", agent=find_agent("")))
        return self.project.role(str(task.name or "task"), persona, words, task.promises, find_agent)

    @functools.cached_property
    def project(self) -> "PersonaSources":
        """The persona and set-up definitions of the program and the project's file."""
        from shoal.pipeline.task_step import PersonaSources

        return PersonaSources(folder=self._folder, environ=self._environ, personas=self._personas, own=self._document())

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """The models that the project's file names."""
        return self.project.upstreams() if self.has_file else ()

    @property
    def has_file(self) -> bool:
        """Return whether the project has a `shoal.yaml`."""
        return own_file(self._folder).is_file()

    def _is_persona(self, name: str) -> bool:
        if name in self._named:
            return False
        if name in self._personas:
            return True
        return self.has_file and name in self.project.names and name not in (self.project.agents)

    def helper(self, name: str, private: tuple[Path, ...]) -> ResolvedTask:
        """Describe an agent that another may start."""
        return ResolvedTask(name=name, prompt="", agent=self._by_name(name, private))

    def variables(self, env: Mapping[str, Variable] | None) -> tuple[dict[str, str], dict[str, str]]:
        """Read a task's variables; those of the form `{"from": NAME}` are secrets, returned with their host names."""
        values: dict[str, str] = {}
        sources: dict[str, str] = {}
        for name, value in (env or {}).items():
            match value:
                case str():
                    values[name] = value
                case {"from": str(source)} if source in self._environ:
                    values[name] = self._environ[source]
                    sources[name] = source
                case {"from": str(source)}:
                    raise BadInput(f"the host has no variable {source!r}; set it, or give {name} a value")
                case _:
                    raise BadInput(f"variable {name!r:.60} must be a text or {{'from': HOST_NAME}}")
        return values, sources

    def _spec(self, wanted: AgentLike, private: tuple[Path, ...]) -> AgentSpec:
        match wanted:
            case AgentSpec():
                return wanted
            case str():
                return self._by_name(wanted, private)
            case Mapping():
                return self._describe(wanted)
            case InProcess():
                return AgentSpec(name=slug(wanted.name or "", otherwise="agent"), adapter="python", made=wanted)
            case _ if callable(wanted):
                return function_agent(wanted, private)
        raise BadInput(f"{wanted!r:.60} is no agent; give a name, a mapping with `adapter`, an Agent, or a function")

    def _describe(self, wanted: Mapping[str, object]) -> AgentSpec:
        """Parse a description once: a stream of tasks repeats the same one, and YAML is slow."""
        text = repr(wanted)
        if text not in self._read:
            if len(self._read) >= MOST_READ:
                self._read.clear()
            self._read[text] = describe_agent(wanted, self._environ)
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
            roles = (*self._personas, *(document.shape.personas if document else ()))
            if known or self._named or roles or difflib.get_close_matches(name, CLIENTS, n=1):
                raise UnknownName("agent", name, (*self._named, *known, *roles, *CLIENTS))
            raise self._nobody(name)
        return agent(document, name, environ=self._environ)

    def _nobody(self, name: str) -> BadInput:
        where = f"there is no {OWN_FILE} in {self._folder.resolve()} that could say what it is"
        return BadInput(f"no agent named {name!r}: {where}; write one with `agents:`, or {self._remedy}")

    def _only(self) -> AgentSpec:
        document = self._document()
        known = list(document.shape.agents) if document else []
        if len(known) != 1:
            return self._ready_client(f"{OWN_FILE} has {len(known)}" if document else f"there is no {OWN_FILE}")
        return self._by_name(known[0], ())

    def _ready_client(self, there: str) -> AgentSpec:
        """Return the only client that is ready on this host, if a person asked without naming one."""
        ready = ready_clients(self._environ)
        if self._takes_ready_client and len(ready) == 1:
            self._taken = ready[0]
            return self._by_name(ready[0], ())
        remedy = self._remedy
        if ready:
            are = f"{ready[0]} is" if len(ready) == 1 else f"{', '.join(ready[:-1])} and {ready[-1]} are"
            remedy = f"{are} ready here: add `--agent {ready[0]}`"
        raise BadInput(f"no agent: the task names none, and {there}; {remedy}")

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which agent was chosen without being named."""
        return () if self._taken is None else (f"agent {self._taken}: the only client that is ready here",)

    def _document(self) -> "Document | None":
        from shoal.pipeline.load import load

        own = own_file(self._folder)
        return load(own) if own.is_file() else None


def describe_agent(agent: Mapping[str, object], environ: Mapping[str, str]) -> AgentSpec:
    """Read an agent from a mapping, by the same rules as in a file."""
    from shoal.pipeline.load import parse
    from shoal.pipeline.plan import agent as planned

    fields = {key: value for key, value in agent.items() if key != "name"}
    name = str(agent.get("name", agent.get("adapter", "agent")))
    try:
        text = json.dumps({"agents": {name: fields}})
    except (TypeError, ValueError) as error:
        raise BadInput(f"the agent {name!r:.60} is described by a value that is not plain: {error}") from None
    return planned(parse(text, f"agent {name}"), name, environ=environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefaults:
    """The settings of tasks that have none of their own."""

    private: tuple[Path, ...] = ()
    limits: ResourceLimits | None = None
    network: str | None = None
    setup: Setup | None = None
    """The program's set-up of workspaces."""
    file_setup: Setup | None = None
    """The set-up in `runtime` of the project's file."""


Budgets = Mapping[str, SpendingLimit]
"""What may be spent on models, by what it counts for."""
NO_BUDGETS: Budgets = MappingProxyType({})


def resolve_task(task: Task, directory: AgentDirectory, defaults: TaskDefaults, budgets: Budgets = NO_BUDGETS) -> Role:
    """Resolve *task* with its persona and its promises; raise `BadInput` if it is invalid."""
    role = directory.role(task, defaults.private)
    base, agent = role.task, role.task.agent
    values, sources = directory.variables(task.env)
    brief = briefing(task)
    network = task.network or base.network or agent.network or defaults.network
    limits = ResourceLimits.of(task.limits) if isinstance(task.limits, Mapping) else task.limits
    permissions = Permissions.of(task.permissions) if isinstance(task.permissions, Mapping) else task.permissions
    settled = replace(
        base,
        name=str(task.name),
        prompt=brief.prompt,
        inputs=brief.inputs,
        network=_network(network) if network else None,
        timeout=base.timeout if task.timeout is None else seconds(task.timeout),
        limits=limits or base.limits or agent.limits or defaults.limits,
        env={**base.env, **values},
        secrets=(base.secrets - values.keys()) | sources.keys(),
        secret_sources={**base.secret_sources, **sources},
        expect=task.expect,
        permissions=effective(permissions, base.permissions),
        retry=Retry.of(task.retry),
        priority=task.priority,
        setup=base.setup or _setup(agent, defaults),
        needs_node=read_labels(task.needs_node or {}) or base.needs_node,
        talk=TalkGrant.of(task.talk) if isinstance(task.talk, Mapping) else task.talk or base.talk or agent.talk,
        budgets={**base.budgets, **_own_budgets(task, agent), **budgets},
    )
    helpers = settled.talk.agents if settled.talk else ()
    found = {helper_name(name): directory.helper(name, defaults.private) for name in helpers}
    return replace(role, task=settled, reviewers={**role.reviewers, **found})


def _own_budgets(task: Task, agent: AgentSpec) -> dict[str, SpendingLimit]:
    found = {} if agent.budget is None else {"session": agent.budget}
    return found if task.budget is None else {**found, "step": SpendingLimit.read(task.budget)}


def resolve_assignment(task: Task, directory: AgentDirectory, defaults: TaskDefaults) -> ResolvedTask:
    """Resolve what one agent has to do; raise `BadInput` if it is invalid."""
    return resolve_task(task, directory, defaults).task


def _setup(agent: AgentSpec, defaults: TaskDefaults) -> Setup | None:
    """Use the default set-up if the agent has none of its own; one from its file's `runtime` is not its own."""
    is_own = agent.setup is not None and agent.setup != defaults.file_setup
    return None if is_own else defaults.setup or defaults.file_setup


def add_need_results(resolve_assignment: ResolvedTask, task: Task, needs: Mapping[str, WorkerResult]) -> ResolvedTask:
    """Add the results of the needs to the prompt, if an input of *task* names one of them."""
    resolved = task.resolve_inputs(needs)
    if resolved is task:
        return resolve_assignment
    words = briefing(resolved)
    return replace(resolve_assignment, prompt=words.prompt, inputs=words.inputs)


def name_tasks(tasks: Sequence[Task], names: Iterable[str]) -> list[Task]:
    """Give each unnamed task one of *names*, and refuse duplicates."""
    source = iter(names)
    found = [task if task.name else replace(task, name=next(source)) for task in tasks]
    twice = [name for name, count in Counter(str(task.name) for task in found).items() if count > 1]
    if twice:
        raise BadInput(f"two tasks are named {twice[0]!r}; rename one")
    return found


def label_of(task: Task, mask: Callable[[str], str]) -> str:
    """Call the work of a task without a name after its prompt, unless that contains a secret."""
    return "" if task.name or mask(task.prompt) != task.prompt else make_label(task.prompt)


def without_secret_label(step: Stage, mask: Callable[[str], str]) -> Stage:
    """Return *step* without a label that may contain a secret of its prompt."""
    if not isinstance(step, Step) or not step.label or mask(step.task.prompt) == step.task.prompt:
        return step
    return replace(step, label="")


def assert_order(tasks: Sequence[Task]) -> None:
    """Refuse tasks that need an unknown task, or each other in a cycle."""
    known = [str(task.name) for task in tasks]
    for task in tasks:
        _assert_known(task, known)
    if cycle := draw_cycle({str(task.name): task.deps for task in tasks}):
        raise BadInput(f"these tasks wait for each other for ever: {cycle}")


def _assert_known(task: Task, known: Collection[str]) -> None:
    for need in task.deps:
        if need not in known:
            raise UnknownName(f"dependency of {task.name}", str(need), known)


def _network(written: str) -> Network:
    if written not in tuple(Network):
        raise UnknownName("network", str(written), [network.value for network in Network])
    return Network(written)
