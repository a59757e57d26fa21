"""Make a plan for tasks that were given on the command line, without a file."""

from collections.abc import Mapping, Sequence

from shoal.errors import BadInput
from shoal.model.plan import Plan, Step
from shoal.model.resolved_task import ResolvedTask
from shoal.model.status import Rule
from shoal.model.task import Task
from shoal.pipeline.names import LONGEST, slug

DEFAULT_AT_ONCE = 5


def adhoc(
    tasks: Sequence[Task],
    assigned: Mapping[tuple[str, str], ResolvedTask],
    workers: Mapping[str, int],
    rule: Rule | None = None,
) -> Plan:
    """Make one step per task, or one per task and agent where several agents do the same work.

    *workers* is the number of each agent; *assigned* is by task name and agent name. The sandbox and the like have the
    plan's defaults: override them with `dataclasses.replace`.
    """
    many = len(workers) > 1
    steps = tuple(
        Step(
            name=_name(str(task.name), agent, many=many),
            task=assigned[str(task.name), agent],
            workers=count,
            on_failure="best_effort",
            needs=tuple(task.deps),
            base=task.base if isinstance(task.base, str) else None,
            wish=task,
        )
        for task in tasks
        for agent, count in workers.items()
    )
    _assert_rule(rule, steps)
    return Plan(name="adhoc", steps=steps, max_concurrent=DEFAULT_AT_ONCE, rule=rule)


def _name(task: str, agent: str, *, many: bool) -> str:
    return slug(f"{task}-{agent}"[:LONGEST]) if many else task


def _assert_rule(rule: Rule | None, steps: Sequence[Step]) -> None:
    total = sum(step.workers for step in steps)
    if rule is not None and rule.count_required(total) > total:
        raise BadInput(f"a quorum of {rule.wanted} needs more than {total} agents")
    if rule is not None and any(step.needs for step in steps):
        raise BadInput("tasks with `deps` cannot use --pattern, because they do not all run at once")
