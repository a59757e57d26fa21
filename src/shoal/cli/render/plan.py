"""The plan of a run as text, for `shoal run --dry-run`."""

from collections.abc import Iterator

from shoal.cli.outline import Outline, OutlineRow, network
from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import beginning, columns, count, join_cells, seconds, some
from shoal.model.conflict_rule import Merging
from shoal.model.limits import ResourceLimits
from shoal.model.matrix import Matrix, expand_matrix
from shoal.model.merge import Strategy
from shoal.model.plan import Approval, PipelineGroup, Stage, Step
from shoal.model.resolved_task import ResolvedTask
from shoal.sessions.limit_watch import describe_limits

INDENT = "  "
LONGEST = 100
CELLS = 8
USUAL = ResourceLimits.default()


def plan_lines(outline: Outline, paint: Paint) -> Iterator[str]:
    """Yield the headline, the stages in waves, and the settings of the whole run."""
    plan = outline.plan
    agents = "a number of agents" if outline.total is None else count(outline.total, "agent")
    many = f"{count(len(outline.rows), 'step')}, {agents} in all, at most {outline.at_once} at once"
    yield f"{paint(escape(plan.name), 'bold')}: {many}"
    yield from _waves(outline, paint)
    yield ""
    yield f"sandbox: {escape(plan.sandbox)} · workspace: {escape(plan.isolation_strategy)}"
    yield f"limits: {describe_limits(USUAL)} per agent, unless a step sets its own"
    if plan.fleet_limits is not None:
        yield f"limits for the whole run: {describe_limits(plan.fleet_limits)}"
    if plan.rule is not None:
        yield f"pattern: {escape(plan.rule.pattern)}, for all steps together"
    yield f"merge: {_merge(plan.merging)}"
    yield from (f"note: {escape(note)}" for note in plan.notes)
    yield "dry run: nothing was started or written"


def _merge(how: Merging | None) -> str:
    """Describe what happens to the work when the run ends."""
    if how is None:
        return "none; each agent's work stays on its own branch for you to review"
    verified = [] if how.verify is None else [f"verified by `{beginning(how.verify.words, LONGEST)}`"]
    when = "into {} once you approve" if how.strategy is Strategy.REVIEW else "then into {}"
    delivered = [] if how.into is None else [when.format(escape(how.into))]
    onto = f"successful work onto shoal/<run> ({how.strategy.value})"
    return ", ".join((onto, *verified, *delivered, f"conflicts: {how.on_conflict.value}"))


def _waves(outline: Outline, paint: Paint) -> Iterator[str]:
    heads = columns([_head(row) for row in outline.rows])
    wave = 0
    for row, head in zip(outline.rows, heads, strict=True):
        if row.wave != wave:
            wave = row.wave
            yield ""
            yield paint(f"wave {wave}", "dim")
        yield f"{INDENT}{join_cells(head)}"
        yield from (f"{INDENT * 3}{paint(line, 'dim')}" for line in _details(row))


def _head(row: OutlineRow) -> tuple[str, str, str]:
    match row.stage:
        case Step(is_command=True) as step:
            return escape(row.name), "command", f"no agent, network {network(step).value}"
        case Step() as step:
            number = "some agents" if row.workers is None else count(row.workers, "agent")
            agents = dict.fromkeys(f"{escape(task.agent.name)} ({escape(task.agent.adapter)})" for task in step.tasks)
            return escape(row.name), number, f"{', '.join(agents)}, network {network(step).value}"
        case Approval():
            return escape(row.name), "gate", "waits for a person"
        case _:
            return escape(row.name), "pipeline", f"{count(_inside(row.stage), 'step')} of its own"


def _inside(stage: Stage) -> int:
    return len(stage.stages) if isinstance(stage, PipelineGroup) else 0


def _details(row: OutlineRow) -> Iterator[str]:
    stage = row.stage
    yield _start(row)
    if row.aggregates:
        several = ", ".join(map(escape, row.aggregates))
        yield f"gets only the aggregate and artifacts of {several}: several workers and no `select`"
    if stage.condition is not None:
        yield f"only if {beginning(stage.condition, LONGEST)}"
    if stage.loop is not None:
        yield f"up to {count(stage.loop.most, 'round')}, until {beginning(stage.loop.until, LONGEST)}"
    if stage.is_optional:
        yield "optional: its failure does not stop the run"
    match stage:
        case Step():
            yield from _step_details(stage)
        case Approval(gate=gate):
            until = "" if gate.timeout is None else f" (after {seconds(gate.timeout)}: {gate.on_timeout.value})"
            yield f"asks: {beginning(gate.message, LONGEST)}{until}"


def _start(row: OutlineRow) -> str:
    """Say what a stage waits for, and what it starts from."""
    needs = f"needs {', '.join(map(escape, row.needs))}; " if row.needs else ""
    if row.stage.base is not None:
        return f"{needs}starts from {escape(row.stage.base)}"
    if not row.starts_from:
        return f"{needs}starts from the run's base"
    merged = "the merged work" if len(row.starts_from) > 1 else "the work"
    return f"{needs}starts from {merged} of {', '.join(map(escape, row.starts_from))}"


def _step_details(step: Step) -> Iterator[str]:
    task = step.task
    if task.prompt.strip():
        yield f"task: {beginning(task.prompt.strip(), LONGEST)}"
    if step.workers > 1:
        yield f"on failure: {escape(step.on_failure)}"
    if task.retry.max_attempts > 1:
        yield f"up to {count(task.retry.max_attempts, 'attempt')} each"
    if task.timeout is not None:
        yield f"timeout: {seconds(task.timeout)}"
    if task.limits is not None:
        yield f"limits: {describe_limits(task.limits)}"
    if step.sandbox is not None:
        yield f"sandbox: {escape(step.sandbox)}"
    if step.isolation_strategy is not None:
        yield f"workspace: {escape(step.isolation_strategy)}"
    yield from _setup(task)
    if task.env:
        yield f"env: {', '.join(map(escape, sorted(task.env)))}"
    yield from (
        f"contract {escape(contract.type)}: {beginning(contract.promise, LONGEST)}" for contract in step.contracts
    )
    if step.queue:
        yield f"takes tasks from the queue {escape(step.queue)}, {count(step.at_once, 'task')} at a time"
    if step.matrix is not None:
        yield f"matrix: {_matrix(step.matrix)}"
    if step.vary:
        yield f"vary: {count(len(step.vary), 'variation')}, assigned in turn"
    if step.select is not None:
        yield f"select: the best by {', '.join(map(escape, step.select.by))}"
    if step.artifacts:
        named = (f"{escape(artifact.name)} ({escape(artifact.path)})" for artifact in step.artifacts)
        yield f"artifacts: {', '.join(named)}"


def _setup(task: ResolvedTask) -> Iterator[str]:
    setup = task.nearest_setup
    if setup is None or not setup.commands:
        return
    network = f", network {setup.network.value}" if setup.network else ""
    how = "for each agent" if setup.is_each else "once for all"
    yield f"setup: {beginning('; '.join(setup.commands), LONGEST)} ({how}, at most {seconds(setup.timeout)}{network})"


def _matrix(matrix: Matrix) -> str:
    parallel = "" if matrix.most is None else f", {matrix.most} at once"
    if matrix.source is not None:
        return f"one for each item of {escape(matrix.source.step)}/{escape(matrix.source.artifact)}{parallel}"
    return f"{some([cell.id for cell in expand_matrix(matrix)], CELLS)}{parallel}"
