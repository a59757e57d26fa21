"""Settling a task on its agent: what was asked, with what the program and the project say about it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.engine.briefing import briefing
from shoal.engine.roster import Roster
from shoal.errors import BadInput, UnknownName
from shoal.model.assignment import Assignment
from shoal.model.graph import drawn_cycle
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Permissions
from shoal.model.policy import Network
from shoal.model.results import WorkerResult
from shoal.model.retry import Retry
from shoal.model.task import Task
from shoal.pipeline.duration import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What holds where a task says nothing."""

    private: tuple[Path, ...] = ()
    limits: ResourceLimits | None = None
    network: str | None = None


def assignment(task: Task, roster: Roster, usual: Usual) -> Assignment:
    """Settle *task*; raise `BadInput` for what it cannot mean."""
    agent = roster.agent(task, usual.private)
    values, secret = roster.variables(task.env)
    told = briefing(task)
    network = task.network or agent.network or usual.network
    limits = ResourceLimits.of(task.limits) if isinstance(task.limits, Mapping) else task.limits
    permissions = Permissions.of(task.permissions) if isinstance(task.permissions, Mapping) else task.permissions
    return Assignment(
        name=str(task.name),
        prompt=told.prompt,
        inputs=told.inputs,
        agent=agent,
        network=_network(network) if network else None,
        timeout=None if task.timeout is None else seconds(task.timeout),
        limits=limits or agent.limits or usual.limits,
        env=values,
        secrets=secret,
        expect=task.expect,
        permissions=permissions,
        retry=Retry.of(task.retry),
        priority=task.priority,
    )


def informed(assignment: Assignment, task: Task, needs: Mapping[str, WorkerResult]) -> Assignment:
    """Tell what the needs came to, where an input of *task* is the name of one of them."""
    if not any(isinstance(one, str) and one in needs for one in task.inputs):
        return assignment
    inputs = [needs.get(one, one) if isinstance(one, str) else one for one in task.inputs]
    told = briefing(replace(task, inputs=inputs))
    return replace(assignment, prompt=told.prompt, inputs=told.inputs)


def named(tasks: Sequence[Task], names: Iterable[str]) -> list[Task]:
    """Give a name of *names* to each task that has none, and refuse two of one name."""
    source = iter(names)
    found = [task if task.name else replace(task, name=next(source)) for task in tasks]
    twice = [name for name, count in Counter(str(task.name) for task in found).items() if count > 1]
    if twice:
        raise BadInput(f"two tasks are named {twice[0]!r}; rename one")
    return found


def assert_order(tasks: Sequence[Task]) -> None:
    """Refuse tasks that need one that is not there, or that wait for each other for ever."""
    known = [str(task.name) for task in tasks]
    for task in tasks:
        _assert_known(task, known)
    if cycle := drawn_cycle({str(task.name): task.deps for task in tasks}):
        raise BadInput(f"these tasks wait for each other for ever: {cycle}")


def _assert_known(task: Task, known: Collection[str]) -> None:
    for need in task.deps:
        if need not in known:
            raise UnknownName(f"dependency of {task.name}", str(need), known)


def _network(written: str) -> Network:
    if written not in tuple(Network):
        raise UnknownName("network", str(written), [one.value for one in Network])
    return Network(written)
