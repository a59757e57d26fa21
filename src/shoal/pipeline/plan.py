"""Document to plan: defaults, nearest-wins, the clamp and the host's variables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import UnknownName
from shoal.model.agent import AgentSpec
from shoal.model.assignment import Assignment, Plan, Step
from shoal.model.limits import ResourceLimits
from shoal.model.mind import TOOLS, Mind
from shoal.model.permissions import Permissions, effective
from shoal.model.policy import Network
from shoal.model.rule import Rule
from shoal.pipeline.load import Document
from shoal.pipeline.mind import canonical_replies
from shoal.pipeline.names import slug
from shoal.pipeline.problems import BadDocument, Position, Problem, key
from shoal.pipeline.shape import AgentShape, FromHost, PersonaShape, StepShape, Surroundings
from shoal.pipeline.tree import Scalar, find, position

STACKED = ("auto", "needs")
MAX_SUB_AGENTS = 10  # what the clients themselves cap at (seed 001)


def plan(document: Document, pipeline: str | None = None, *, environ: Mapping[str, str]) -> Plan:
    """Make the plan of one pipeline; `None` means the only one. *environ* is what `{from: NAME}` is read from.

    Raises `UnknownName` for a pipeline that is not there, `BadDocument` for a host variable that is not.
    """
    chosen = _chosen(document, pipeline)
    planner = _Planner(document=document, environ=environ)
    steps = tuple(planner.step(shape, (*chosen.path, index)) for index, shape in enumerate(chosen.steps))
    if planner.problems:
        raise BadDocument(planner.problems)
    runtime = document.shape.runtime
    return Plan(
        name=chosen.name,
        steps=steps,
        max_concurrent=runtime.max_concurrent_workers,
        isolation_strategy=runtime.isolation_strategy,
        sandbox=runtime.sandbox,
        cleanup_on_complete=runtime.cleanup_on_complete,
        fleet_limits=runtime.fleet_limits,
        notes=tuple(planner.notes),
    )


def agent(document: Document, name: str, *, environ: Mapping[str, str]) -> AgentSpec:
    """Return one agent of *document*, for work that is not in it."""
    if name not in document.shape.agents:
        raise UnknownName("agent", name, document.shape.agents)
    planner = _Planner(document=document, environ=environ)
    spec = planner.agent(name)
    planner.assert_permitted(spec.permissions, planner.variables(document.shape.agents[name], ("agents", name)))
    if planner.problems:
        raise BadDocument(planner.problems)
    return spec


@dataclass(frozen=True, slots=True)
class _Chosen:
    name: str
    path: tuple[str | int, ...]
    steps: Sequence[StepShape]


@dataclass(frozen=True, slots=True)
class _Taken:
    """A variable of the host, and where it was asked for."""

    variable: str
    at: Position


@dataclass(frozen=True, slots=True)
class _Variables:
    values: dict[str, str]
    taken: dict[str, _Taken]

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(self.taken)

    def under(self, nearer: "_Variables") -> "_Variables":
        """Lay *nearer* over these: a literal in place of a secret is a secret no more."""
        kept = {name: one for name, one in self.taken.items() if name not in nearer.values}
        return _Variables(self.values | nearer.values, kept | nearer.taken)


@dataclass(slots=True, kw_only=True)
class _Planner:
    """One making of a plan: what it has to say besides the steps gathers here."""

    document: Document
    environ: Mapping[str, str]
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def step(self, shape: StepShape, path: tuple[str | int, ...]) -> Step:
        persona = self.document.shape.personas[shape.persona] if shape.persona else PersonaShape()
        spec = self.agent(shape.agent or persona.agent or "")
        variables = self.variables(self.document.shape.agents[spec.name], ("agents", spec.name))
        if shape.persona:
            variables = variables.under(self.variables(persona, ("personas", shape.persona)))
        variables = variables.under(self.variables(shape, path))
        permissions = effective(_permissions(shape), _permissions(persona), spec.permissions)
        self.assert_permitted(permissions, variables)
        task = Assignment(
            name=shape.title,
            prompt=self._prompt(shape),
            agent=spec,
            system_prompt=self._system_prompt(shape),
            network=self._network(shape, persona, spec),
            timeout=shape.timeout or persona.timeout or spec.timeout,
            limits=self._limits(shape, persona, spec.name),
            env=variables.values,
            secrets=variables.secrets,
            expect=shape.expect,
            permissions=permissions,
            retry=shape.retry,
        )
        return Step(
            name=shape.title,
            task=task,
            workers=self._workers(shape),
            on_failure=shape.on_failure,
            needs=shape.wanted,
            base=None if shape.base in STACKED or shape.base == "run" else shape.base,
            is_stacked=shape.base in STACKED,
            is_optional=shape.optional,
        )

    def agent(self, name: str) -> AgentSpec:
        shape = self.document.shape.agents[name]
        variables = self.variables(shape, ("agents", name))
        return AgentSpec(
            name=name,
            adapter=shape.adapter,
            command=tuple(shape.command or ()),
            script=self.document.scripts.get(name),
            network=Network(shape.network) if shape.network else None,
            env=variables.values,
            secrets=variables.secrets,
            timeout=shape.timeout,
            limits=shape.limits,
            permissions=_permissions(shape),
            mind=_mind(shape),
        )

    def assert_permitted(self, permissions: Permissions | None, variables: _Variables) -> None:
        """Find the variables of the host that *permissions* do not list."""
        listed = permissions.env if permissions else None
        for one in variables.taken.values() if listed is not None else ():
            if one.variable not in (listed or ()):
                what = f"{key(one.variable)} may not be taken from the host; add it to `permissions.env`, or remove it"
                self.problems.append(Problem(self.document.name, one.at, what))

    def _network(self, step: StepShape, persona: PersonaShape, spec: AgentSpec) -> Network | None:
        nearest = step.network or persona.network or spec.network or self.document.shape.runtime.network
        return Network(nearest) if nearest else None

    def _limits(self, step: StepShape, persona: PersonaShape, agent: str) -> ResourceLimits | None:
        shape = self.document.shape
        return step.limits or persona.limits or shape.agents[agent].limits or shape.runtime.resource_limits

    def _workers(self, shape: StepShape) -> int:
        most = self.document.shape.runtime.max_concurrent_workers
        if shape.concurrency > most:
            self._note(shape, f"concurrency {shape.concurrency} clamped to {most} (runtime.max_concurrent_workers)")
        workers = min(shape.concurrency, most)
        if (rule := Rule.on_failure(shape.on_failure)).needed(workers) > workers:
            self._note(shape, f"a quorum of {rule.wanted} cannot be had of {workers} workers: it will fail")
        return workers

    def _prompt(self, shape: StepShape) -> str:
        if "{{" in shape.words:
            self._note(shape, "`{{ … }}` in the prompt is given to the agent as it stands; templates come later")
        return shape.words

    def _system_prompt(self, shape: StepShape) -> str:
        words = self.document.system_prompts[shape.persona] if shape.persona else ""
        offered = min(shape.max_concurrent_agents, MAX_SUB_AGENTS)
        if shape.max_concurrent_agents > offered:
            self._note(shape, f"max_concurrent_agents {shape.max_concurrent_agents} capped to {offered}")
        if offered <= 1:
            return words
        hint = f"You may spawn up to {offered} concurrent sub-agents or workers for this step."
        return f"{words.rstrip()}\n\n{hint}" if words.strip() else hint

    def variables(self, shape: Surroundings, path: tuple[str | int, ...]) -> _Variables:
        values = {name: self._value(value, (*path, "env", name)) for name, value in shape.env.items()}
        taken = {
            name: _Taken(value.variable, position(self.document.tree, [*path, "env", name, "from"]))
            for name, value in shape.env.items()
            if isinstance(value, FromHost)
        }
        return _Variables(values, taken)

    def _value(self, value: str | FromHost, path: tuple[str | int, ...]) -> str:
        if not isinstance(value, FromHost):
            node = find(self.document.tree, *path)
            return node.text if isinstance(node, Scalar) else value  # as written: 1.10 stays 1.10
        if value.variable not in self.environ:
            at = position(self.document.tree, [*path, "from"])
            what = f"the host has no variable {key(value.variable)}; set it, or write a value here"
            self.problems.append(Problem(self.document.name, at, what))
        return self.environ.get(value.variable, "")

    def _note(self, shape: StepShape, what: str) -> None:
        self.notes.append(f"step {shape.title}: {what}")


def _mind(shape: AgentShape) -> Mind | None:
    if shape.model is None:
        return None
    return Mind(
        model=shape.model,
        tools=tuple(TOOLS) if shape.tools is None else tuple(shape.tools),
        replies=None if shape.replies is None else canonical_replies(shape.replies),
        budget=shape.budget.given if shape.budget else None,
    )


def _permissions(shape: Surroundings) -> Permissions | None:
    return shape.permissions.given if shape.permissions else None


def _chosen(document: Document, pipeline: str | None) -> _Chosen:
    found = {one.name: one for one in _pipelines(document)}
    if not found:
        what = "nothing to run: no `steps` and no `pipelines`; add one of them"
        raise BadDocument([Problem(document.name, Position(), what)])
    if pipeline is None and len(found) == 1:
        return next(iter(found.values()))
    if pipeline is None:
        what = f"there are {len(found)} pipelines; say which: {', '.join(found)}"
        raise BadDocument([Problem(document.name, position(document.tree, ["pipelines"]), what)])
    if pipeline not in found:
        raise UnknownName("pipeline", pipeline, found)
    return found[pipeline]


def _pipelines(document: Document) -> list[_Chosen]:
    if document.shape.steps is not None:
        stem = slug(Path(document.name).stem, otherwise="pipeline")
        return [_Chosen(stem, ("steps",), document.shape.steps)]
    listed = document.shape.pipelines or []
    return [_Chosen(one.name, ("pipelines", index, "steps"), one.steps) for index, one in enumerate(listed)]
