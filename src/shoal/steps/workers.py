"""Make the workers of a step when it starts, with texts filled in, and run them."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from shoal.adapters.client import this_host
from shoal.adapters.kind import Adapter
from shoal.adapters.registry import adapter_of
from shoal.errors import AllFailed, BadInput, QuorumMissed, Refused
from shoal.model.artifact import ProducedArtifact, Type, document, select_inputs
from shoal.model.matrix import Cell, Matrix, expand_matrix, from_items
from shoal.model.plan import Step, Variation, local_name, variation
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.shell import SHELL, fill_argv
from shoal.model.status import Rule, Status
from shoal.patterns import Call, Err, Limiter, gather, quorum, race, settled
from shoal.pipeline.names import slug
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerKey, WorkerRunner, is_good
from shoal.steps.dag import Contribution, DagRunner, Node, NodeInputs, Unstacked, explain_skip
from shoal.steps.history import Visit, is_decided
from shoal.steps.prompt import with_artifacts
from shoal.steps.resolve_task import add_need_results
from shoal.steps.stage_outcome import StageOutcome
from shoal.steps.template_scope import TemplateScope, aggregate
from shoal.workspaces.kind import Kind

AGGREGATE = "aggregate"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of the workers of one step."""

    adapter: Adapter
    sandbox: Sandbox | None = None
    kind: Kind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTemplate:
    """What the workers of one step have in common."""

    step: Step
    equipment: WorkerSettings
    base: str | None
    scope: TemplateScope
    task: ResolvedTask
    parts: Mapping[str, tuple[ProducedArtifact, ...]]
    reviewers: Mapping[str, ResolvedTask]
    visit: int = 1
    mask: Callable[[str], str] = str
    """Hides secrets, which may be in what a step made of earlier agents' work."""

    def make(
        self, index: int, count: int, values: Mapping[str, object], *, item: str | None = None, label: str = ""
    ) -> WorkerSpec:
        """Make one worker, with *values* for its texts; raises `BadInput` for a text that cannot be filled in."""
        step = self.step
        here = self.scope.having(worker={"index": index, "count": count}, **values)
        row = variation(step.vary, index)
        own = _fill_worker_texts(step, self.task, here, row if step.vary else None)
        return WorkerSpec(
            step=step.name,
            index=index,
            count=count,
            task=_with_inputs(step, own, self.parts),
            adapter=self.equipment.adapter if row.task is None else adapter_of(own.agent, this_host()),
            sandbox=self.equipment.sandbox,
            kind=self.equipment.kind,
            visit=self.visit,
            base=self.base,
            trusts_base=trusts_base(step, self.base),
            item=item,
            label=label or step.label,
            artifacts=tuple(replace(artifact, path=here.render(artifact.path)) for artifact in step.artifacts),
            contracts=tuple(contract.fill_in(here.render) for contract in step.contracts),
            trial=None if step.trial is None else step.trial.fill_in(here.render),
            reviewers={name: fill_in(self.reviewers[name], here) for name in step.reviewers} if self.reviewers else {},
        )


def make_template(
    step: Step,
    equipment: WorkerSettings,
    base: str | None,
    scope: TemplateScope,
    needs: Mapping[str, StageOutcome],
    reviewers: Mapping[str, ResolvedTask] | None = None,
    visit: int = 1,
    mask: Callable[[str], str] = str,
) -> WorkerTemplate:
    """Collect what the workers of *step* have in common."""
    return WorkerTemplate(
        step=step,
        equipment=equipment,
        base=base,
        scope=scope,
        task=_with_need_results(step, needs),
        parts=_find_inputs(step, needs),
        reviewers=reviewers or {},
        visit=visit,
        mask=mask,
    )


def make_workers(template: WorkerTemplate, cells: Sequence[Cell] | None = None) -> list[WorkerSpec]:
    """Make each worker of a step, or one for each of *cells*."""
    if cells is None:
        return [template.make(index, template.step.workers, {}) for index in range(template.step.workers)]
    labels = [_label(template, cell) for cell in cells]
    return [
        template.make(index, len(cells), _matrix_values(cell), item=cell.id or None, label=label)
        for index, (cell, label) in enumerate(zip(cells, labels, strict=True))
    ]


def _label(template: WorkerTemplate, cell: Cell) -> str:
    """Call the work on *cell* after it, unless that may contain a secret."""
    is_safe = template.mask(cell.id) == cell.id
    return slug(f"{local_name(template.step.name)}-{cell.label}") if is_safe else ""


def trusts_base(step: Step, base: str | None) -> bool:
    """Return whether *base* was named by the user, or agents' work may run; a later round's base is agents' work."""
    return (step.base is not None and base == step.base) or step.task.allow_executable_config


def make_unstarted_workers(step: Step, equipment: WorkerSettings) -> list[WorkerSpec]:
    """Make the workers of a step that never starts, for their names; nobody took its tasks from a queue."""
    if step.queue:
        return []
    return [
        WorkerSpec(
            step=step.name,
            index=index,
            count=step.workers,
            task=step.task,
            adapter=equipment.adapter,
            label=step.label,
        )
        for index in range(step.workers)
    ]


def _matrix_values(cell: Cell) -> dict[str, object]:
    return {"matrix": cell.values, "item": cell.item, "task": cell.item}


def _with_need_results(step: Step, needs: Mapping[str, StageOutcome]) -> ResolvedTask:
    """Add the results of its needs to the prompt, if the task asks for them."""
    if step.wish is None:
        return step.task
    spoken = {need: result for need, outcome in needs.items() if (result := outcome.spokesman)}
    return add_need_results(step.task, step.wish, spoken)


def _find_inputs(step: Step, needs: Mapping[str, StageOutcome]) -> dict[str, tuple[ProducedArtifact, ...]]:
    """Find the artifacts for *step*, by the names of the steps that left them; several workers add theirs."""
    found: dict[str, tuple[ProducedArtifact, ...]] = {}
    for need, outcome in needs.items():
        parts = tuple(part for made in outcome.artifacts.values() for part in made)
        found[local_name(need)] = (*parts, _aggregate(outcome)) if outcome.result.total_workers > 1 else parts
    return select_inputs(found, step.injections)


def _with_inputs(step: Step, task: ResolvedTask, parts: Mapping[str, tuple[ProducedArtifact, ...]]) -> ResolvedTask:
    """Put artifacts beside the prompt; a plain command gets the files, and nothing about them on its stdin."""
    if not parts and task.title:
        return task
    given = with_artifacts(task, parts) if parts else task
    return replace(given, prompt=task.prompt if step.is_command else given.prompt, title=task.title or task.prompt)


def _aggregate(outcome: StageOutcome) -> ProducedArtifact:
    text = json.dumps(aggregate(outcome.result), indent=1)
    return ProducedArtifact(name=AGGREGATE, type=Type.JSON, path=f"{AGGREGATE}.json", content=text.encode())


def _fill_worker_texts(step: Step, task: ResolvedTask, scope: TemplateScope, own: Variation | None) -> ResolvedTask:
    """Fill in the texts for one worker."""
    if own is not None:
        task = apply_variation(task, own)
    if step.is_template:
        task = fill_in(task, scope)
    if step.is_command:
        title = scope.render(task.agent.command[-1]) if task.agent.command[:-1] == SHELL else ""
        command = fill_argv(task.agent.command, scope.render)
        agent = task.agent if command == task.agent.command else replace(task.agent, command=command)
        task = replace(task, agent=agent, title=title or " ".join(command))
    return task


def fill_in(task: ResolvedTask, scope: TemplateScope) -> ResolvedTask:
    """Fill in the texts of *task*."""
    return replace(
        task,
        prompt=scope.render(task.prompt),
        system_prompt=scope.render(task.system_prompt),
        env={name: text if name in task.secrets else scope.render(text) for name, text in task.env.items()},
    )


def apply_variation(task: ResolvedTask, own: Variation) -> ResolvedTask:
    """Apply the variation of one worker to *task*."""
    if own.task is not None:
        task = replace(own.task, prompt=task.prompt, inputs=task.inputs)
    if own.model is not None:
        task = task.asking(own.model)
    agent, env = task.agent, dict(task.env)
    if own.temperature is not None:
        env["SHOAL_TEMPERATURE"] = f"{own.temperature:g}"
        mind = replace(agent.mind, temperature=own.temperature) if agent.mind else None
        agent = replace(agent, mind=mind, temperature=own.temperature)
    prompt = f"{task.prompt.rstrip()}\n\n{own.prompt}" if own.prompt else task.prompt
    return replace(task, agent=agent, env={**env, **own.env}, prompt=prompt)


async def run_together(
    runner: WorkerRunner, workers: Sequence[WorkerSpec], rule: Rule, most: int | None = None
) -> tuple[WorkerResult, ...]:
    """Run *workers* by *rule*, at most *most* at once, and return all results in order, including stopped ones."""
    known = [
        runner.history.final(Visit(worker.step, worker.visit), worker.index, worker.task.retry.max_attempts)
        for worker in workers
    ]
    if is_decided(rule, known):  # decided before the run was resumed
        return take_recorded(runner, workers, known)
    if len(workers) == 1:  # with any rule, it runs, and its result is a value
        await runner.run(workers[0])
        return (runner.result(workers[0]),)
    calls = [partial(runner.run, worker) for worker in workers]
    limiter = limiter_for(workers) if most is None else Limiter(most)
    try:
        match rule.pattern:
            case "gather":
                await gather(calls, accept=is_good, limiter=limiter)
            case "race":
                await race(calls, accept=is_good, limiter=limiter)
            case "quorum":
                await quorum(calls, rule.wanted, accept=is_good, limiter=limiter)
            case _:
                await _run_all(calls, limiter)
    except (AllFailed, QuorumMissed) as missed:
        for error in missed.errors:
            _expect(error)
    except Refused:
        pass
    return tuple(runner.result(worker) for worker in workers)


def take_recorded(
    runner: WorkerRunner, workers: Sequence[WorkerSpec], known: Sequence[WorkerResult | None]
) -> tuple[WorkerResult, ...]:
    """Return the results that the workers of a step had before the run was resumed."""
    for worker, result in zip(workers, known, strict=True):
        runner.workers[WorkerKey(worker.step, worker.index)] = worker
        if result is not None:
            runner.results[WorkerKey(worker.step, worker.index)] = result
    return tuple(runner.result(worker) for worker in workers)


def limiter_for(workers: Sequence[WorkerSpec]) -> Limiter:
    """Let all *workers* start: each session takes its own slot, and a waiting retry holds none."""
    return Limiter(max(1, len(workers)))


async def _run_all(calls: Sequence[Call[WorkerResult]], limiter: Limiter) -> None:
    for outcome in await settled(calls, limiter=limiter):
        if isinstance(outcome, Err):
            raise outcome.error


def _expect(error: Exception) -> None:
    """An agent's failure is a value; any exception is a broken machine or our bug."""
    if not isinstance(error, Refused):
        raise error


def cells_of(matrix: Matrix, needs: Mapping[str, StageOutcome]) -> tuple[Cell, ...]:
    """Return the cells: those in the plan, or one for each item that an earlier step left."""
    source = matrix.source
    if source is None:
        return expand_matrix(matrix)
    left = {local_name(need): outcome.artifacts for need, outcome in needs.items()}[source.step]
    parts = left.get(source.artifact, ())
    if not parts:
        raise BadInput(f"there is no artifact {source.artifact} of step {source.step} to take items from")
    try:
        items = document(parts[0].content)
    except ValueError:
        raise BadInput(f"artifact {source.artifact} of step {source.step} is not JSON, so there are no items") from None
    return from_items(matrix, items)


async def run_cells(
    runner: WorkerRunner, step: Step, workers: Sequence[WorkerSpec], cells: Sequence[Cell]
) -> tuple[WorkerResult, ...]:
    """Run the workers of all cells, as many at once as the matrix allows."""
    most = step.matrix.most if step.matrix else None
    rule = Rule.on_failure(step.on_failure)
    if not any(cell.needs for cell in cells):
        return await run_together(runner, workers, rule, most)
    limiter = Limiter(most or max(1, len(workers)))
    work = _CellWork(
        runner, {cell.id: worker for cell, worker in zip(cells, workers, strict=True)}, rule.pattern == "gather"
    )
    with contextlib.suppress(Refused):
        await DagRunner(runner.context, work, limiter).run([_cell_node(cell, step.name) for cell in cells])
    return tuple(runner.result(worker) for worker in workers)


def _cell_node(cell: Cell, step: str) -> Node:
    return Node(name=cell.id, needs=cell.needs, title=step)


@dataclass(frozen=True, slots=True)
class _CellWork:
    """The cells of a matrix, for the scheduler."""

    runner: WorkerRunner
    workers: Mapping[str, WorkerSpec]
    is_strict: bool
    """Whether the first failure ends the rest."""

    def is_met(self, ended: WorkerResult) -> bool:
        return ended.status.is_good

    def contribution(self, name: str, ended: WorkerResult) -> Contribution:
        return Contribution(ended.session, ended.commit or ended.base)  # a cell without changes passes on its base

    async def skip(self, node: Node, failed: Sequence[str]) -> WorkerResult:
        return self._note(node, Status.SKIPPED, explain_skip(failed))

    async def unstack(self, node: Node, error: Unstacked, turn: NodeInputs[WorkerResult]) -> WorkerResult:
        return self._note(node, Status.FAILED, str(error))

    async def perform(self, node: Node, turn: NodeInputs[WorkerResult]) -> WorkerResult:
        worker = self.workers[node.name]
        await self.runner.run(replace(worker, base=turn.base or worker.base))
        return self._end(node)

    def _note(self, node: Node, status: Status, why: str) -> WorkerResult:
        worker = self.workers[node.name]
        self.runner.note(worker, worker.result_without_start(status, why))
        return self._end(node)

    def _end(self, node: Node) -> WorkerResult:
        result = self.runner.result(self.workers[node.name])
        if self.is_strict and not result.status.is_good:
            raise Refused(result)
        return result
