"""What a run would do, in words."""

from collections.abc import Iterator

from shoal.cli.outline import Outline, Row, network
from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.columns import beginning, columns, count, joined, seconds, some
from shoal.engine.bounds import spelt
from shoal.model.assignment import Assignment
from shoal.model.conflict_rule import Merging
from shoal.model.limits import ResourceLimits
from shoal.model.matrix import Matrix, expanded
from shoal.model.plan import Approval, Group, Stage, Step

INDENT = "  "
LONGEST = 100
CELLS = 8
USUAL = ResourceLimits.unnamed()


def plan_lines(outline: Outline, paint: Paint) -> Iterator[str]:
    """Give the headline, the stages in their waves, and what holds for all of them."""
    plan = outline.plan
    agents = "a number of agents" if outline.total is None else count(outline.total, "agent")
    many = f"{count(len(outline.rows), 'step')}, {agents} in all, at most {outline.at_once} at once"
    yield f"{paint(plain(plan.name), 'bold')}: {many}"
    yield from _waves(outline, paint)
    yield ""
    yield f"wall: {plain(plan.sandbox)} · workspace: {plain(plan.isolation_strategy)}"
    yield f"limits: {spelt(USUAL)} each, where a step says no other"
    if plan.fleet_limits is not None:
        yield f"limits of all together: {spelt(plan.fleet_limits)}"
    if plan.rule is not None:
        yield f"together: {plain(plan.rule.pattern)}, all steps by one rule"
    yield f"merge: {_merge(plan.merging)}"
    yield from (f"note: {plain(note)}" for note in plan.notes)
    yield "dry run: nothing was started, and nothing was written"


def _merge(how: Merging | None) -> str:
    """Say what becomes of the work when the run has ended."""
    if how is None:
        return "nothing; each agent's work is left on a branch for you to review"
    verified = [] if how.verify is None else [f"verified by `{beginning(how.verify.words, LONGEST)}`"]
    delivered = [] if how.into is None else [f"then into {plain(how.into)}"]
    onto = f"what ends well onto shoal/<run> ({how.strategy.value})"
    return ", ".join((onto, *verified, *delivered, f"conflicts: {how.on_conflict.value}"))


def _waves(outline: Outline, paint: Paint) -> Iterator[str]:
    heads = columns([_head(row) for row in outline.rows])
    wave = 0
    for row, head in zip(outline.rows, heads, strict=True):
        if row.wave != wave:
            wave = row.wave
            yield ""
            yield paint(f"wave {wave}", "dim")
        yield f"{INDENT}{joined(head)}"
        yield from (f"{INDENT * 3}{paint(line, 'dim')}" for line in _details(row))


def _head(row: Row) -> tuple[str, str, str]:
    match row.stage:
        case Step(is_command=True) as step:
            return plain(row.name), "command", f"no agent, network {network(step).value}"
        case Step() as step:
            number = "some agents" if row.workers is None else count(row.workers, "agent")
            who = f"{plain(step.task.agent.name)} ({plain(step.task.agent.adapter)}), network {network(step).value}"
            return plain(row.name), number, who
        case Approval():
            return plain(row.name), "gate", "waits for a person"
        case _:
            return plain(row.name), "pipeline", f"{count(_inside(row.stage), 'step')} of its own"


def _inside(stage: Stage) -> int:
    return len(stage.stages) if isinstance(stage, Group) else 0


def _details(row: Row) -> Iterator[str]:
    stage = row.stage
    yield _start(row)
    if row.aggregates:
        several = ", ".join(map(plain, row.aggregates))
        yield f"of {several} it gets the aggregate and artifacts only: several workers, and no `select`"
    if stage.condition is not None:
        yield f"only if {beginning(stage.condition, LONGEST)}"
    if stage.loop is not None:
        yield f"up to {count(stage.loop.most, 'round')}, until {beginning(stage.loop.until, LONGEST)}"
    if stage.is_optional:
        yield "optional: its failure stops nobody"
    match stage:
        case Step():
            yield from _step_details(stage)
        case Approval(gate=gate):
            until = "" if gate.timeout is None else f" (after {seconds(gate.timeout)}: {gate.on_timeout.value})"
            yield f"asks: {beginning(gate.message, LONGEST)}{until}"


def _start(row: Row) -> str:
    """Say what a stage waits for, and what it starts from."""
    needs = f"needs {', '.join(map(plain, row.needs))}; " if row.needs else ""
    if row.stage.base is not None:
        return f"{needs}starts from {plain(row.stage.base)}"
    if not row.starts_from:
        return f"{needs}starts from the run's base"
    merged = "the merged work" if len(row.starts_from) > 1 else "the work"
    return f"{needs}starts from {merged} of {', '.join(map(plain, row.starts_from))}"


def _step_details(step: Step) -> Iterator[str]:
    task = step.task
    if task.prompt.strip():
        yield f"task: {beginning(task.prompt.strip(), LONGEST)}"
    if step.workers > 1:
        yield f"on failure: {plain(step.on_failure)}"
    if task.retry.max_attempts > 1:
        yield f"up to {count(task.retry.max_attempts, 'attempt')} each"
    if task.timeout is not None:
        yield f"ended after {seconds(task.timeout)}"
    if task.limits is not None:
        yield f"limits: {spelt(task.limits)}"
    if step.sandbox is not None:
        yield f"wall: {plain(step.sandbox)}"
    if step.isolation_strategy is not None:
        yield f"workspace: {plain(step.isolation_strategy)}"
    yield from _setup(task)
    if task.env:
        yield f"env: {', '.join(map(plain, sorted(task.env)))}"
    yield from (f"contract {plain(one.type)}: {beginning(one.promise, LONGEST)}" for one in step.contracts)
    if step.matrix is not None:
        yield f"matrix: {_matrix(step.matrix)}"
    if step.vary:
        yield f"vary: {count(len(step.vary), 'variation')}, dealt out in turn"
    if step.select is not None:
        yield f"the best is selected by {', '.join(map(plain, step.select.by))}"
    if step.artifacts:
        yield f"leaves: {', '.join(f'{plain(one.name)} ({plain(one.path)})' for one in step.artifacts)}"


def _setup(task: Assignment) -> Iterator[str]:
    setup = task.nearest_setup
    if setup is None or not setup.commands:
        return
    network = f", network {setup.network.value}" if setup.network else ""
    how = "for each agent" if setup.is_each else "once for all"
    yield f"set-up: {beginning('; '.join(setup.commands), LONGEST)} ({how}, at most {seconds(setup.timeout)}{network})"


def _matrix(matrix: Matrix) -> str:
    parallel = "" if matrix.most is None else f", {matrix.most} at once"
    if matrix.source is not None:
        return f"one for each item of {plain(matrix.source.step)}/{plain(matrix.source.artifact)}{parallel}"
    return f"{some([cell.id for cell in expanded(matrix)], CELLS)}{parallel}"
