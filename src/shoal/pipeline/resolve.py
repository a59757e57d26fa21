"""Resolve one step of a document: defaults, precedence, clamping, and the host's variables."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.model.agent import TOOLS, AgentSpec, ModelSettings
from shoal.model.budget import SpendingLimit
from shoal.model.conflict_rule import Merging
from shoal.model.contract import TRIAL, AgentReview, CommandContract, Contract, compliance
from shoal.model.limits import ResourceLimits
from shoal.model.matrix import Matrix, expand_matrix
from shoal.model.permissions import Permissions, effective
from shoal.model.plan import Step, Variation
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.setup import Setup
from shoal.model.status import Rule
from shoal.model.talk import helper_name
from shoal.pipeline.keys.python_agent import canonical_replies
from shoal.pipeline.keys.vary import temperature_problems
from shoal.pipeline.load import Document
from shoal.pipeline.problems import Position, Problem, key
from shoal.pipeline.shape import AgentShape, CommonSettings, PersonaShape, RuntimeShape, StepShape
from shoal.pipeline.tree import Scalar, find, position
from shoal.pipeline.value_types import FromHost


@dataclass(frozen=True, slots=True)
class ReservedName:
    """A host variable, and where it was requested."""

    variable: str
    at: Position


@dataclass(frozen=True, slots=True)
class Variables:
    """Variables with their values, and which of them came from the host."""

    values: dict[str, str]
    taken: dict[str, ReservedName]

    @property
    def secrets(self) -> frozenset[str]:
        """Return the names whose values are never shown."""
        return frozenset(self.taken)

    @property
    def sources(self) -> dict[str, str]:
        """Return the host variable of each of them."""
        return {name: reserved.variable for name, reserved in self.taken.items()}

    def under(self, nearer: "Variables") -> "Variables":
        """Apply *nearer* on top of these: a literal replaces a secret."""
        kept = {name: value for name, value in self.taken.items() if name not in nearer.values}
        return Variables(self.values | nearer.values, kept | nearer.taken)


def system_prompt(words: str, compliance: str, sub_agents: int, permissions: Permissions | None) -> str:
    """Join the sections in order: contract compliance, concurrency (seed 001), restrictions."""
    sections = (
        words.rstrip(),
        compliance,
        _section("Concurrency", _offer(sub_agents)),
        _section("Restrictions", _restrictions(permissions)),
    )
    filled = [section for section in sections if section]
    return words if filled == [words.rstrip()] else "\n\n".join(filled)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def _offer(sub_agents: int) -> str:
    if sub_agents <= 1:
        return ""
    return f"You may spawn up to {sub_agents} concurrent sub-agents or workers for this step."


def _restrictions(permissions: Permissions | None) -> str:
    """Describe which tools are forbidden; what the sandbox enforces needs no words."""
    if permissions is None:
        return ""
    lines = []
    if permissions.allowed_tools is not None:
        lines.append(f"- Tools that you may use: {', '.join(permissions.allowed_tools) or 'none'}.")
    if permissions.deny:
        lines.append(f"- Tools that you may not use: {', '.join(permissions.deny)}.")
    return "\n".join(lines)


MAX_SUB_AGENTS = 10  # what the clients themselves cap at (seed 001)
PLAIN = "command"
"""The agent of a step that is a plain command."""

Path = tuple[str | int, ...]

_BRACES = re.compile(r"\{\{|\{%")


@dataclass(slots=True, kw_only=True)
class StepResolver:
    """Resolves the steps of one plan, and collects its remarks."""

    document: Document
    environ: Mapping[str, str]
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    reviewers: dict[str, ResolvedTask] = field(default_factory=dict)
    inside: int = 0
    """How many steps nested pipelines have."""

    def refuse(self, path: Path, what: str) -> None:
        """Note what is wrong with the value at *path*."""
        self.problems.append(Problem(self.document.name, position(self.document.tree, path), what))

    def step(self, shape: StepShape, path: Path, name: str) -> Step:
        """Resolve a step with work for agents, or a plain command."""
        own = shape.has_agent
        persona = self._persona(shape)
        name_of_agent = shape.agent or persona.agent or next((row.agent for row in shape.vary if row.agent), "")
        spec = with_persona_model(self.agent(name_of_agent), persona) if own else _plain(shape)
        task, by = self.assignment(shape, path, persona, spec), self._agent_shape(spec)
        vary = self._variations(shape, path, persona)
        for place, problem in temperature_problems(self.document.tree, path, vary, spec):
            self.refuse(place, problem)
        for helper in task.talk.agents if task.talk else ():
            self._reviewer(helper_name(helper), None, helper)
        return Step(
            name=name,
            task=task,
            workers=self._workers(shape, path),
            on_failure=_on_failure(shape),
            is_command=not own,
            artifacts=tuple(artifact.given for artifact in shape.output_artifacts),
            contracts=self.contracts(shape),
            select=shape.select.given if shape.select else None,
            trial=_trial(shape),
            vary=vary,
            matrix=self._matrix(shape, path),
            queue=shape.from_queue or "",
            at_once=self._clamp(shape),
            injections=None
            if shape.inject_artifacts is None
            else tuple(injection.given for injection in shape.inject_artifacts),
            sandbox=shape.sandbox or persona.sandbox or by.sandbox,
            isolation_strategy=shape.isolation_strategy or persona.isolation_strategy or by.isolation_strategy,
        )

    def _variations(self, shape: StepShape, path: Path, persona: PersonaShape) -> tuple[Variation, ...]:
        """Resolve the task of each worker with an agent of its own."""
        specs = [None if row.agent is None else self.agent(row.agent) for row in shape.vary]
        tasks = [None if spec is None else self.assignment(shape, path, persona, spec) for spec in specs]
        return tuple(replace(row, task=task) for row, task in zip(shape.vary, tasks, strict=True))

    def contracts(self, shape: StepShape) -> tuple[Contract, ...]:
        """Resolve its contracts and reviewers."""
        contracts = shape.to_contracts(self.document.schemas)
        for contract in contracts:
            if isinstance(contract, AgentReview):
                self._reviewer(contract.reviewer, contract.persona, contract.agent)
        select = shape.select.given if shape.select else None
        if select is not None and select.judge is not None:
            self._reviewer(select.judge, select.persona, select.agent)
        return contracts

    def _reviewer(self, name: str, persona: str | None, agent: str | None) -> None:
        shape = StepShape(name="review", persona=persona, agent=agent, prompt="")
        own = self._persona(shape)
        spec = with_persona_model(self.agent(agent or own.agent or ""), own)
        self.reviewers[name] = self.assignment(shape, (), own, spec)

    def resolver(self, how: Merging | None) -> None:
        """Resolve the agent that resolves conflicts after the run."""
        if how is not None and how.resolver is not None:
            self._reviewer(how.resolver, how.resolver_persona, how.resolver_agent)

    def _matrix(self, shape: StepShape, path: Path) -> Matrix | None:
        if shape.strategy is None:
            return None
        needed = [
            sibling for sibling in self._siblings(path) if sibling.output_artifacts and sibling.title in shape.wanted
        ]
        return shape.strategy.to_matrix(
            {sibling.title: [made.given for made in sibling.output_artifacts] for sibling in needed}
        )

    def _siblings(self, path: Path) -> Sequence[StepShape]:
        """Return all steps of the pipeline that contains the step at *path*."""
        shape = self.document.shape
        if path[0] == "steps" or shape.pipelines is None:
            return shape.steps or ()
        return shape.pipelines[int(path[1])].steps

    def assignment(self, shape: StepShape, path: Path, persona: PersonaShape, spec: AgentSpec) -> ResolvedTask:
        """Resolve what an agent has to do, by precedence."""
        variables = self.variables(self._agent_shape(spec), ("agents", spec.name))
        if shape.persona:
            variables = variables.under(self.variables(persona, ("personas", shape.persona)))
        variables = variables.under(self.variables(shape, path))
        permissions = effective(_permissions(shape), _permissions(persona), spec.permissions)
        permissions = _with_reach(permissions, (shape, persona, self._agent_shape(spec)))
        self.assert_permitted(permissions, variables)
        return ResolvedTask(
            name=shape.title,
            prompt=shape.words,
            agent=spec,
            system_prompt=self._system_prompt(shape, permissions),
            network=self._network(shape, persona, spec),
            timeout=shape.timeout or persona.timeout or spec.timeout,
            stall_timeout=shape.stall_timeout or persona.stall_timeout or spec.stall_timeout,
            limits=self._limits(shape, persona, spec),
            env=variables.values,
            secrets=variables.secrets,
            secret_sources=variables.sources,
            max_concurrent_agents=max(1, min(shape.max_concurrent_agents, MAX_SUB_AGENTS)),
            expect=shape.expect,
            allow_executable_config=shape.allow_executable_config,
            permissions=permissions,
            retry=shape.retry,
            setup=self.setup(shape, persona, self._agent_shape(spec)),
            talk=next((given.talk.given for given in (shape, persona) if given.talk), spec.talk),
            budgets=self._budgets(shape, persona, spec),
        )

    def _budgets(self, step: StepShape, persona: PersonaShape, spec: AgentSpec) -> dict[str, SpendingLimit]:
        agent = self.document.shape.agents.get(spec.name)
        found = {} if step.budget is None else {"step": step.budget.given}
        if persona.budget is not None:
            found[f"persona:{step.persona}"] = persona.budget.given
        if spec.budget is not None:
            found["session"] = spec.budget
            if agent is not None and agent.budget is not None and agent.budget.turns is not None:
                self.refuse(("agents", spec.name, "budget", "turns"), "`turns` goes only with `adapter: python`")
        return found

    def agent(self, name: str) -> AgentSpec:
        """Describe the agent of that name."""
        shape = self.document.shape.agents.get(name)
        if shape is None:  # a client needs no description
            return AgentSpec(name=name, adapter=name, setup=self.setup())
        variables = self.variables(shape, ("agents", name))
        return AgentSpec(
            name=name,
            adapter=shape.adapter,
            command=tuple(shape.command or ()),
            args=tuple(shape.args or ()),
            refresh_login=shape.refresh_login,
            model=shape.model if shape.adapter != "python" else None,
            stall_timeout=shape.stall_timeout,
            script=self.document.scripts.get(name),
            network=Network(shape.network) if shape.network else None,
            env=variables.values,
            secrets=variables.secrets,
            secret_sources=variables.sources,
            timeout=shape.timeout,
            limits=shape.limits,
            budget=shape.budget.session_limit if shape.budget and shape.adapter != "python" else None,
            setup=self.setup(shape),
            permissions=_permissions(shape),
            talk=shape.talk.given if shape.talk else None,
            mind=_mind(shape),
        )

    def assert_permitted(self, permissions: Permissions | None, variables: Variables) -> None:
        """Find host variables that *permissions* do not list."""
        listed = permissions.env if permissions else None
        for value in variables.taken.values() if listed is not None else ():
            if value.variable not in (listed or ()):
                what = (
                    f"{key(value.variable)} may not be taken from the host; add it to `permissions.env`, or remove it"
                )
                self.problems.append(Problem(self.document.name, value.at, what))

    def _network(self, step: StepShape, persona: PersonaShape, spec: AgentSpec) -> Network | None:
        nearest = step.network or persona.network or spec.network or self.document.shape.runtime.network
        return Network(nearest) if nearest else None

    def setup(self, *nearest: CommonSettings) -> Setup | None:
        """Return the closest set-up: that of *nearest*, or the run's."""
        every: tuple[CommonSettings | RuntimeShape, ...] = (*nearest, self.document.shape.runtime)
        found = next((source.setup for source in every if source.setup is not None), None)
        timeout = next((source.setup_timeout for source in every if source.setup_timeout is not None), None)
        return None if found is None else found.to_setup(timeout)

    def _limits(self, step: StepShape, persona: PersonaShape, spec: AgentSpec) -> ResourceLimits | None:
        return step.limits or persona.limits or spec.limits or self.document.shape.runtime.resource_limits

    def _persona(self, shape: StepShape) -> PersonaShape:
        return self.document.shape.personas[shape.persona] if shape.persona else PersonaShape()

    def _agent_shape(self, spec: AgentSpec) -> CommonSettings:
        return self.document.shape.agents.get(spec.name) or CommonSettings()

    def _workers(self, shape: StepShape, path: Path) -> int:
        workers = self._cells(shape) if shape.strategy or shape.from_queue else self._clamp(shape)
        is_open = shape.strategy is not None and shape.strategy.matrix is None
        if not is_open and (why := Rule.on_failure(shape.on_failure).why_not(workers)):
            at = position(self.document.tree, [*path, "on_failure"])
            self.problems.append(Problem(self.document.name, at, f"{why}; ask for fewer, or for more workers"))
        return workers

    def _cells(self, shape: StepShape) -> int:
        """Count the cells of a matrix; it counts as one if an artifact or a queue decides."""
        return len(expand_matrix(shape.strategy.matrix)) if shape.strategy and shape.strategy.matrix else 1

    def _clamp(self, shape: StepShape) -> int:
        most = self.document.shape.runtime.max_concurrent_workers
        if shape.concurrency > most:
            self._note(shape, f"concurrency {shape.concurrency} clamped to {most} (runtime.max_concurrent_workers)")
        return min(shape.concurrency, most)

    def _system_prompt(self, shape: StepShape, permissions: Permissions | None) -> str:
        words = self.document.system_prompts[shape.persona] if shape.persona else ""
        offered = min(shape.max_concurrent_agents, MAX_SUB_AGENTS)
        if shape.max_concurrent_agents > offered:
            self._note(shape, f"max_concurrent_agents {shape.max_concurrent_agents} capped to {offered}")
        promises = compliance(shape.to_contracts(self.document.schemas)) if shape.has_agent else ""
        # A schema may contain braces, which are literal.
        return system_prompt(words, _BRACES.sub(r"{{ '\g<0>' }}", promises), offered, permissions)

    def variables(self, shape: CommonSettings, path: Path) -> Variables:
        """Read the variables of *shape*."""
        values = {name: self._value(value, (*path, "env", name)) for name, value in shape.env.items()}
        taken = {
            name: ReservedName(value.variable, position(self.document.tree, [*path, "env", name, "from"]))
            for name, value in shape.env.items()
            if isinstance(value, FromHost)
        }
        return Variables(values, taken)

    def _value(self, value: str | FromHost, path: Path) -> str:
        if not isinstance(value, FromHost):
            node = find(self.document.tree, *path)
            return node.text if isinstance(node, Scalar) else value  # as written: 1.10 stays 1.10
        if value.variable not in self.environ:
            what = f"the host has no variable {key(value.variable)}; set it, or write a value here"
            self.refuse((*path, "from"), what)
        return self.environ.get(value.variable, "")

    def _note(self, shape: StepShape, what: str) -> None:
        self.notes.append(f"step {shape.title}: {what}")


def with_persona_model(spec: AgentSpec, persona: PersonaShape) -> AgentSpec:
    """Return the agent with the model of its persona."""
    return spec if persona.model is None else spec.asking(persona.model)


def _mind(shape: AgentShape) -> ModelSettings | None:
    if shape.model is None or shape.adapter != "python":
        return None
    return ModelSettings(
        model=shape.model,
        tools=tuple(TOOLS) if shape.tools is None else tuple(shape.tools),
        replies=None if shape.replies is None else canonical_replies(shape.replies),
        budget=shape.budget.given if shape.budget else None,
    )


def _permissions(shape: CommonSettings) -> Permissions | None:
    return shape.permissions.given if shape.permissions else None


def _with_reach(permissions: Permissions | None, nearest: Sequence[CommonSettings]) -> Permissions | None:
    """Add the nearest `hosts` and `provider_tools`, which are short for those of `permissions`."""
    for name in ("hosts", "provider_tools"):
        listed = next((getattr(shape, name) for shape in nearest if getattr(shape, name) is not None), None)
        if listed is not None:
            permissions = replace(permissions or Permissions(), **{name: tuple(listed)})
    return permissions


def _plain(shape: StepShape) -> AgentSpec:
    """Make the agent of a plain command, which no document defines."""
    return AgentSpec(name="", adapter=PLAIN, command=shape.argv)


def _on_failure(shape: StepShape) -> str:
    """Return the rule; with `select`, one success is enough, and a matrix has keys of its own for it."""
    if "on_failure" in shape.model_fields_set:
        return shape.on_failure
    if shape.select is not None or shape.from_queue is not None:
        return "best_effort"
    is_patient = shape.strategy is not None and False in (shape.strategy.fail_fast, shape.strategy.fail_fast_dashed)
    return "best_effort" if is_patient else shape.on_failure


def _trial(shape: StepShape) -> CommandContract | None:
    select = shape.select
    if select is None or select.command is None:
        return None
    command = select.command if isinstance(select.command, str) else tuple(select.command)
    return CommandContract(type=TRIAL, only_warns=True, command=command, timeout=select.timeout)
