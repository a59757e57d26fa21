"""The workers of a step as jobs, made when it starts: texts filled in, differences and artifacts laid on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.adapters.kind import Adapter
from shoal.engine.assign import informed
from shoal.engine.briefing import with_artifacts
from shoal.engine.job import Job
from shoal.engine.outcome import Outcome
from shoal.engine.scope import Scope, aggregate
from shoal.model.artifact import Produced, Type, injected
from shoal.model.assignment import Assignment
from shoal.model.matrix import Cell
from shoal.model.plan import Step, short
from shoal.model.shell import SHELL, filled
from shoal.model.vary import Variation, variation
from shoal.sandboxes.kind import Sandbox
from shoal.workspaces.kind import Kind

AGGREGATE = "aggregate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What the jobs of one step are run with."""

    adapter: Adapter
    sandbox: Sandbox | None = None
    kind: Kind | None = None


def jobs_of(
    step: Step,
    equipment: Equipment,
    base: str | None,
    scope: Scope,
    needs: Mapping[str, Outcome],
    cells: Sequence[Cell] | None = None,
    reviewers: Mapping[str, Assignment] | None = None,
) -> list[Job]:
    """Make one job for each worker, or for each of *cells*; raises `BadInput` for a text that cannot be filled in."""
    count = step.workers if cells is None else len(cells)
    task, parts = _briefed(step, needs), _given(step, needs)
    made = []
    for index in range(count):
        cell = None if cells is None else cells[index]
        here = scope.having(worker={"index": index, "count": count}, **_celled(cell))
        own = _told(step, task, here, variation(step.vary, index) if step.vary else None)
        made.append(
            Job(
                step=step.name,
                index=index,
                count=count,
                task=_equipped(step, own, parts),
                adapter=equipment.adapter,
                sandbox=equipment.sandbox,
                kind=equipment.kind,
                base=base,
                trusts_base=step.base is not None or step.task.allow_executable_config,
                item=cell.id if cell else None,
                artifacts=step.artifacts,
                contracts=tuple(one.rendered(here.rendered) for one in step.contracts),
                trial=None if step.trial is None else step.trial.rendered(here.rendered),
                reviewers={name: filled_in(reviewers[name], here) for name in step.reviewers} if reviewers else {},
            )
        )
    return made


def unrendered(step: Step, equipment: Equipment) -> list[Job]:
    """Make the jobs of a step that never starts, for their names."""
    return [
        Job(step=step.name, index=index, count=step.workers, task=step.task, adapter=equipment.adapter)
        for index in range(step.workers)
    ]


def _celled(cell: Cell | None) -> dict[str, object]:
    if cell is None:
        return {}
    return {"matrix": cell.values, "item": cell.item, "task": cell.item}


def _briefed(step: Step, needs: Mapping[str, Outcome]) -> Assignment:
    """Tell the results of its needs, where they were asked for."""
    if step.wish is None:
        return step.task
    spoken = {need: one for need, outcome in needs.items() if (one := outcome.spokesman)}
    return informed(step.task, step.wish, spoken)


def _given(step: Step, needs: Mapping[str, Outcome]) -> dict[str, tuple[Produced, ...]]:
    """Find the artifacts that *step* is given, by the names of the steps that left them; several workers add theirs."""
    found: dict[str, tuple[Produced, ...]] = {}
    for need, outcome in needs.items():
        parts = tuple(part for made in outcome.artifacts.values() for part in made)
        found[short(need)] = (*parts, _aggregate(outcome)) if outcome.result.total_workers > 1 else parts
    return injected(found, step.injections)


def _equipped(step: Step, task: Assignment, parts: Mapping[str, tuple[Produced, ...]]) -> Assignment:
    """Lay artifacts beside the prompt; a plain command is given the files, and nothing to read on its stdin."""
    if not parts and task.title:
        return task
    given = with_artifacts(task, parts) if parts else task
    return replace(given, prompt=task.prompt if step.is_command else given.prompt, title=task.title or task.prompt)


def _aggregate(outcome: Outcome) -> Produced:
    text = json.dumps(aggregate(outcome.result), indent=1)
    return Produced(name=AGGREGATE, type=Type.JSON, path=f"{AGGREGATE}.json", content=text.encode())


def _told(step: Step, task: Assignment, scope: Scope, own: Variation | None) -> Assignment:
    """Fill in the texts for one worker."""
    if own is not None:
        task = varied(task, own)
    if step.is_template:
        task = filled_in(task, scope)
    if step.is_command:
        title = scope.rendered(task.agent.command[-1]) if task.agent.command[:-1] == SHELL else ""
        command = filled(task.agent.command, scope.rendered)
        agent = task.agent if command == task.agent.command else replace(task.agent, command=command)
        task = replace(task, agent=agent, title=title or " ".join(command))
    return task


def filled_in(task: Assignment, scope: Scope) -> Assignment:
    """Fill in the texts of *task*."""
    return replace(
        task,
        prompt=scope.rendered(task.prompt),
        system_prompt=scope.rendered(task.system_prompt),
        env={name: text if name in task.secrets else scope.rendered(text) for name, text in task.env.items()},
    )


def varied(task: Assignment, own: Variation) -> Assignment:
    """Lay the differences of one worker over *task*."""
    agent, env = task.agent, dict(task.env)
    if own.model is not None:
        env["SHOAL_MODEL"] = own.model
        agent = agent.asking(own.model)
    if own.temperature is not None:
        env["SHOAL_TEMPERATURE"] = f"{own.temperature:g}"
        agent = replace(agent, mind=replace(agent.mind, temperature=own.temperature)) if agent.mind else agent
    prompt = f"{task.prompt.rstrip()}\n\n{own.prompt}" if own.prompt else task.prompt
    return replace(task, agent=agent, env={**env, **own.env}, prompt=prompt)
