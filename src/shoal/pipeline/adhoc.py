"""Make a plan for tasks that were given on the command line, without a file."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.errors import BadInput
from shoal.model.contract import TRIAL, CommandContract
from shoal.model.plan import Plan, Step, Variation
from shoal.model.resolved_task import ResolvedTask
from shoal.model.select import Select
from shoal.model.status import Rule
from shoal.model.task import Task
from shoal.pipeline.names import LONGEST, make_label, slug

DEFAULT_AT_ONCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AdhocAgents:
    """Who does each task: how many of each agent, and with what work."""

    workers: Mapping[str, int]
    """The number of each agent, by name."""
    assigned: Mapping[tuple[str, str], ResolvedTask]
    """The resolved tasks, by the names of task and agent."""
    unnamed: Container[str] = ()
    """The tasks whose work is called after their prompts."""
    select: str | None = None
    """A command that compares their results: all agents of a task are workers of one step, which keeps the best."""


def adhoc(tasks: Sequence[Task], agents: AdhocAgents, rule: Rule | None = None) -> Plan:
    """Make one step per task, or one per task and agent where several agents do the same work.

    The sandbox and the like have the plan's defaults: override them with `dataclasses.replace`.
    """
    if agents.select is not None:
        steps = tuple(_choosing_step(task, agents, agents.select) for task in tasks)
    else:
        steps = tuple(_step(task, agent, agents) for task in tasks for agent in agents.workers)
    _assert_rule(rule, steps)
    return Plan(name="adhoc", steps=steps, max_concurrent=DEFAULT_AT_ONCE, rule=rule)


def _step(task: Task, agent: str, agents: AdhocAgents) -> Step:
    return Step(
        name=_name(str(task.name), agent, many=len(agents.workers) > 1),
        label=make_label(task.prompt) if str(task.name) in agents.unnamed else "",
        task=agents.assigned[str(task.name), agent],
        workers=agents.workers[agent],
        on_failure="best_effort",
        needs=tuple(task.deps),
        base=task.base if isinstance(task.base, str) else None,
        wish=task,
    )


def _choosing_step(task: Task, agents: AdhocAgents, command: str) -> Step:
    """Make the step of *task* that keeps one result: *command* must pass, and the smallest change wins."""
    first, *others = agents.workers
    each = [agent for agent, count in agents.workers.items() for _ in range(count)]
    rows = tuple(Variation(agent=agent, task=agents.assigned[str(task.name), agent]) for agent in each)
    return replace(
        _step(task, first, agents),
        name=str(task.name),
        workers=len(each),
        vary=rows if others else (),
        select=Select(by=("command", "diff_size"), command=command),
        trial=CommandContract(type=TRIAL, only_warns=True, command=command),
    )


def _name(task: str, agent: str, *, many: bool) -> str:
    return slug(f"{task}-{agent}"[:LONGEST]) if many else task


def _assert_rule(rule: Rule | None, steps: Sequence[Step]) -> None:
    total = sum(step.workers for step in steps)
    if rule is not None and rule.count_required(total) > total:
        raise BadInput(f"a quorum of {rule.wanted} needs more than {total} agents")
    if rule is not None and any(step.needs for step in steps):
        raise BadInput("tasks with `deps` cannot use --pattern, because they do not all run at once")
