"""Make a plan from a document: one pipeline with its nested ones, every stage resolved."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import BadInput, UnknownName
from shoal.model.agent import CLIENTS, AgentSpec
from shoal.model.conflict_rule import ConflictRule, Merging
from shoal.model.database import SHARED, DatabaseSettings
from shoal.model.gateway import LOGINS, USUAL_FORMATS, Upstream, with_logins
from shoal.model.plan import INNER, Approval, PipelineGroup, Plan, Stage, Step
from shoal.model.resolved_task import ResolvedTask
from shoal.pipeline.keys.merging import merging, merging_places
from shoal.pipeline.keys.nodes import build_nodes
from shoal.pipeline.keys.toolchains import tool_folders
from shoal.pipeline.load import Document
from shoal.pipeline.names import OWN_FILE, slug
from shoal.pipeline.problems import BadDocument, Position, Problem
from shoal.pipeline.resolve import StepResolver
from shoal.pipeline.shape import StepShape
from shoal.pipeline.templates.missing_inputs import Input, find_missing_inputs
from shoal.pipeline.templates.template import is_plain
from shoal.pipeline.templates.texts import texts
from shoal.pipeline.tree import find, position
from shoal.pipeline.value_types import FromHost

STACKED = ("auto", "needs")
LONGEST_NAME = 180
"""A session, its branch and its files are named after its step, and file names are limited to 255 bytes."""
MOST_INSIDE = 10_000
"""Steps of nested pipelines: ten levels with ten steps each would be ten thousand million."""


def plan(
    document: Document,
    pipeline: str | None = None,
    *,
    environ: Mapping[str, str],
    given: Input = None,
    is_trial: bool = False,
) -> Plan:
    """Make the plan of one pipeline; `None` means the only one that is not a step of another.

    *environ* provides `{from: NAME}`, *given* is `{{ input }}`; a trial plan does without. Raises `UnknownName` for an
    unknown pipeline, `BadDocument` for a missing host variable or
    input.
    """
    chosen = _choose_pipeline(document, pipeline)
    settling = StepResolver(document=document, environ=environ, notes=[chosen.note] if chosen.note else [])
    steps = _stages(settling, chosen)
    how = merging(document.shape.runtime.merge, document.shape.personas, auto_merge=document.shape.runtime.auto_merge)
    how = None if how is None else replace(how, places=merging_places(document.tree, document.name))
    settling.resolver(how)
    folders, upstreams = tool_folders(settling), resolve_upstreams(settling)
    database = resolve_database(settling)
    if problems := [*settling.problems, *(() if is_trial else find_missing_inputs(document, chosen.path, given))]:
        raise BadDocument(problems)
    runtime = document.shape.runtime
    return Plan(
        name=chosen.name,
        steps=steps,
        max_concurrent=runtime.max_concurrent_workers,
        budget=runtime.budget.given if runtime.budget else None,
        isolation_strategy=runtime.isolation_strategy,
        sandbox=runtime.sandbox,
        cleanup_on_complete=runtime.cleanup_on_complete,
        keep_database=runtime.keep_database,
        database=database,
        store=runtime.store,
        history=runtime.history.limit,
        checkpoint_seconds=runtime.checkpoints.seconds if runtime.checkpoints else None,
        notify=runtime.notify.to_notify(),
        telemetry=runtime.telemetry.to_telemetry() if runtime.telemetry else None,
        fleet_limits=runtime.fleet_limits,
        toolchains=folders,
        nodes=build_nodes(runtime.nodes),
        placement=runtime.placement,
        executable=runtime.executable_config.to_rules(),
        merging=how,
        upstreams=upstreams,
        input=given,
        notes=tuple(dict.fromkeys(settling.notes)),
        reviewers=settling.reviewers,
        queues=tuple(queue.to_queue(name) for name, queue in document.shape.queues.items()),
    )


def resolve_upstreams(settling: StepResolver) -> tuple[Upstream, ...]:
    """Build the models that the document names; what is missing of one is noted as a problem."""
    found = []
    for name, shape in settling.document.shape.gateway.upstreams.items():
        where = ("gateway", "upstreams", name)
        if name not in USUAL_FORMATS and (shape.url is None or shape.format is None):
            what = "url" if shape.url is None else "format"
            known = ", ".join(USUAL_FORMATS)
            settling.refuse(where, f"the model `{name}` needs a `{what}`; only those of providers need none: {known}")
            continue
        if isinstance(shape.key, FromHost) and shape.key.variable not in settling.environ:
            settling.refuse((*where, "key", "from"), f"the host has no variable `{shape.key.variable}`; set it")
        found.append(shape.to_upstream(name))
    logins = settling.document.shape.gateway.logins
    for number, login in enumerate(logins):
        declared = settling.document.shape.gateway.upstreams.get(LOGINS[login])
        if declared is not None and declared.key is not None:
            why = f"the model `{LOGINS[login]}` has a key already; remove that, or the login"
            settling.refuse(("gateway", "logins", number), why)
    return with_logins(found, logins)


def resolve_database(settling: StepResolver) -> DatabaseSettings:
    """Say where agents have their databases; a server that is named, but for no use, is noted as a problem."""
    runtime = settling.document.shape.runtime
    given = runtime.database
    if given is not None and runtime.database_strategy != SHARED:
        settling.refuse(("runtime", "database"), "`database` names a server: add `database_strategy: shared`")
    if isinstance(given, FromHost) and given.variable not in settling.environ:
        settling.refuse(("runtime", "database", "from"), f"the host has no variable `{given.variable}`; set it")
    return DatabaseSettings(
        is_shared=runtime.database_strategy == SHARED,
        url=given if isinstance(given, str) else "",
        url_from=given.variable if isinstance(given, FromHost) else "",
    )


def agent(document: Document, name: str, *, environ: Mapping[str, str]) -> AgentSpec:
    """Return one agent of *document*, for work outside its pipelines."""
    if name not in document.shape.agents:
        raise UnknownName("agent", name, document.shape.agents)
    settling = StepResolver(document=document, environ=environ)
    spec = settling.agent(name)
    settling.assert_permitted(spec.permissions, settling.variables(document.shape.agents[name], ("agents", name)))
    if settling.problems:
        raise BadDocument(settling.problems)
    return spec


def resolver(document: Document, name: str, *, environ: Mapping[str, str]) -> ResolvedTask:
    """Return the resolver of conflicts: a persona of *document*, else an agent."""
    personas, agents = document.shape.personas, (*document.shape.agents, *CLIENTS)
    if name not in personas and name not in agents:
        raise UnknownName("persona or agent", name, (*personas, *agents))
    if name in personas and not personas[name].agent:
        raise BadInput(f"the persona `{name}` names no agent, and a resolver needs one")
    is_persona = name in personas
    how = Merging(resolver_persona=name if is_persona else None, resolver_agent=None if is_persona else name)
    settling = StepResolver(document=document, environ=environ)
    settling.resolver(how)
    if settling.problems:
        raise BadDocument(settling.problems)
    return settling.reviewers[str(how.resolver)]


@dataclass(frozen=True, slots=True)
class _Chosen:
    name: str
    path: tuple[str | int, ...]
    steps: Sequence[StepShape]
    note: str | None = None
    """Why it was chosen, if nobody named it."""


def _stages(settling: StepResolver, chosen: _Chosen, outer: str = "") -> tuple[Stage, ...]:
    """Resolve the steps of a pipeline; the names of nested ones begin with that of the outer step."""
    return tuple(_stage(settling, shape, (*chosen.path, index), outer) for index, shape in enumerate(chosen.steps))


def _stage(settling: StepResolver, shape: StepShape, path: tuple[str | int, ...], outer: str) -> Stage:
    name = outer + shape.title
    if len(name) > LONGEST_NAME:
        what = f"step {name} has a full name of {len(name)} characters; at most {LONGEST_NAME} are allowed"
        settling.refuse((*path, "name"), f"{what}; nest less deeply, or use shorter names")
    made: Stage
    if shape.gate is not None:
        made = Approval(name=name, gate=shape.gate.given)
    elif shape.pipeline is not None:
        made = PipelineGroup(name=name, stages=_inside(settling, shape.pipeline, path, name), input=shape.input)
    else:
        made = _with_needed_node(settling, settling.step(shape, path, name), shape)
    node = find(settling.document.tree, *path)
    written = [text.text for text in texts(node)] if node is not None else []
    if isinstance(made, Step):
        written += _agent_texts(made.task, *(settling.reviewers[name] for name in made.reviewers))
    return replace(
        made,
        needs=tuple(outer + need for need in shape.wanted),
        base=None if shape.base in STACKED or shape.base == "run" else shape.base,
        is_stacked=shape.base in STACKED,
        on_conflict=ConflictRule(shape.on_conflict),
        is_optional=shape.optional,
        is_template=shape.from_queue is not None or not all(map(is_plain, written)),
        condition=shape.condition,
        loop=shape.loop.given if shape.loop else None,
    )


def _with_needed_node(settling: StepResolver, step: Step, shape: StepShape) -> Step:
    """Add up the labels that its agent, its persona and the step itself need of a node."""
    agent = settling.document.shape.agents.get(step.task.agent.name)
    persona = settling.document.shape.personas.get(shape.persona or "")
    needs = {name: value for part in (agent, persona, shape) if part for name, value in part.needs_node.items()}
    return replace(step, task=replace(step.task, needs_node=needs)) if needs else step


def _inside(settling: StepResolver, pipeline: str, path: tuple[str | int, ...], outer: str) -> tuple[Stage, ...]:
    """Resolve the nested pipeline at *path*, unless that would take forever."""
    if len(outer) > LONGEST_NAME or settling.inside > MOST_INSIDE:  # both are reported already
        return ()
    inner = {chosen.name: chosen for chosen in _pipelines(settling.document)}[pipeline]
    settling.inside += len(inner.steps)
    if settling.inside > MOST_INSIDE:
        what = f"with the pipelines inside of pipelines there are more than {MOST_INSIDE} steps"
        settling.refuse((*path, "pipeline"), f"{what}; nest less, or write fewer")
        return ()
    return _stages(settling, inner, f"{outer}{INNER}")


def _agent_texts(*tasks: ResolvedTask) -> Iterator[str]:
    """Yield the texts of agents and personas that belong to a step."""
    for task in tasks:
        yield task.system_prompt
        yield from (text for name, text in task.env.items() if name not in task.secrets)


def _choose_pipeline(document: Document, pipeline: str | None) -> _Chosen:
    found = {chosen.name: chosen for chosen in _pipelines(document)}
    if not found:
        what = "nothing to run: no `steps` and no `pipelines`; add one of them"
        raise BadDocument([Problem(document.name, Position(), what)])
    if pipeline is None:
        return _outermost(document, found)
    if pipeline not in found:
        raise UnknownName("pipeline", pipeline, found)
    return found[pipeline]


def _outermost(document: Document, found: Mapping[str, _Chosen]) -> _Chosen:
    """Return the only pipeline that is not a step of another."""
    inside = {step.pipeline for chosen in found.values() for step in chosen.steps}
    match [chosen for name, chosen in found.items() if name not in inside]:
        case [only] if len(found) == 1:
            return only
        case [only]:
            note = f"pipeline {only.name} is run: of {len(found)} it is the only one that is no step of another"
            return replace(only, note=note)
    how = shlex.join(["shoal", "run", *([] if document.name == OWN_FILE else [document.name]), next(iter(found))])
    what = f"there are {len(found)} pipelines; say which: {', '.join(found)} (as in `{how}`)"
    raise BadDocument([Problem(document.name, position(document.tree, ["pipelines"]), what)])


def _pipelines(document: Document) -> list[_Chosen]:
    if document.shape.steps is not None:
        stem = slug(Path(document.name).stem, otherwise="pipeline")
        return [_Chosen(stem, ("steps",), document.shape.steps)]
    listed = document.shape.pipelines or []
    return [
        _Chosen(pipeline.name, ("pipelines", index, "steps"), pipeline.steps) for index, pipeline in enumerate(listed)
    ]
