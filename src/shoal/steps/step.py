"""Run one step: its workers by its rule, and what it passes on to its dependants."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.errors import FAULTS, BadInput, Broken
from shoal.model.artifact import ProducedArtifact, merge_artifacts
from shoal.model.plan import Stage, Step, walk_stages
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import StepResult, WorkerResult
from shoal.model.status import Rule, Status, step_status
from shoal.sessions.artifacts import read_back, store_artifacts
from shoal.sessions.context import RunContext
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerRunner
from shoal.steps.dag import Contribution, Unstacked, merge_parts
from shoal.steps.history import Visit
from shoal.steps.select import Judge, judge_of, select_worker
from shoal.steps.stage_outcome import StageOutcome, fail_stage, is_good_enough
from shoal.steps.task_queue import TaskQueues, drain_queue, make_worker
from shoal.steps.template_scope import TemplateScope
from shoal.steps.workers import (
    WorkerSettings,
    WorkerTemplate,
    cells_of,
    make_template,
    make_unstarted_workers,
    make_workers,
    run_cells,
    run_together,
    take_recorded,
)
from shoal.store.requests import RequestDoor

MOST_BYTES = 64 * 2**20


class StepRunner:
    """The steps of one run, with the settings of their workers and the door for answers to gates."""

    def __init__(
        self,
        runner: WorkerRunner,
        equipment: Mapping[str, WorkerSettings],
        reviewers: Mapping[str, ResolvedTask],
        door: RequestDoor,
        queues: TaskQueues,
        *,
        approve_all: bool = False,
    ) -> None:
        self.runner = runner
        self.reviewers = reviewers
        self.door = door
        self.queues = queues
        self.approve_all = approve_all
        self._equipment = equipment
        self.visits: dict[str, int] = {}
        """How often each stage has been entered."""

    @property
    def context(self) -> RunContext:
        """The context of the run."""
        return self.runner.context

    async def run(
        self, step: Step, base: str | None, scope: TemplateScope, needs: Mapping[str, StageOutcome]
    ) -> StageOutcome:
        """Run the workers of *step* from *base*, and return what it passes on."""
        history, visit = self.runner.history, self.runner.history.enter(step.name)
        self.visits[step.name] = visit.number
        template = self._template(step, base, scope, needs, visit=visit.number)
        if step.queue:
            return await self._outcome(step, base, await self._drain(template, visit), None)
        cells = None if step.matrix is None else cells_of(step.matrix, needs)
        workers = make_workers(template, cells)
        judge = judge_of(step, scope, self.reviewers)
        if why := Rule.on_failure(step.on_failure).why_not(len(workers)):
            raise BadInput(why)
        if visit in history.steps:
            results = take_recorded(
                self.runner, workers, [history.steps[visit].get(worker.index) for worker in workers]
            )
        elif cells is None:
            results = await run_together(self.runner, workers, Rule.on_failure(step.on_failure))
        else:
            results = await run_cells(self.runner, step, workers, cells)
        return await self._outcome(step, base, results, judge)

    async def _drain(self, template: WorkerTemplate, visit: Visit) -> tuple[WorkerResult, ...]:
        """Work on the tasks of a step's queue, or return the results that it had before the run was resumed."""
        step, queue = template.step, self.queues.find(template.step.queue)
        try:
            if visit in self.runner.history.steps:
                known = self.runner.history.steps[visit]
                workers = [make_worker(template, queue, entry) for entry in queue.list_taken(step.name)]
                return take_recorded(self.runner, workers, [known.get(worker.index) for worker in workers])
            return await drain_queue(self.runner, queue, template, step.at_once)
        finally:
            queue.leave(step.name)

    def make_workers(
        self, step: Step, base: str | None, scope: TemplateScope, needs: Mapping[str, StageOutcome]
    ) -> list[WorkerSpec]:
        """Make the workers of *step*."""
        return make_workers(self._template(step, base, scope, needs))

    def _template(
        self, step: Step, base: str | None, scope: TemplateScope, needs: Mapping[str, StageOutcome], visit: int = 1
    ) -> WorkerTemplate:
        own, mask = self._equipment[step.name], self.context.mask.text
        return make_template(step, own, base, scope, needs, self.reviewers, visit=visit, mask=mask)

    def forget(self, stage: Stage) -> None:
        """Forget the results of *stage* and of everything inside it."""
        names = {inner.name for inner in walk_stages([stage])}
        for place in [place for place in self.runner.results if place.step in names]:
            del self.runner.results[place]

    def has_begun(self, name: str) -> bool:
        """Return whether there is any result of a worker of that step."""
        return any(place.step == name for place in self.runner.results)

    def results(self, step: Step) -> tuple[WorkerResult, ...]:
        """Return the results so far of a step that was stopped."""
        if step.matrix is not None or step.queue:
            mine = [result for place, result in self.runner.results.items() if place.step == step.name]
            return tuple(sorted(mine, key=lambda result: result.index))
        return tuple(self.runner.result(worker) for worker in make_unstarted_workers(step, self._equipment[step.name]))

    def skip(self, stage: Stage, status: Status, why: str) -> StageOutcome:
        """Record that *stage* never began, and why."""
        if isinstance(stage, Step) and stage.queue:
            self.queues.find(stage.queue).leave(stage.name)
        workers: list[WorkerResult] = []
        for worker in make_unstarted_workers(stage, self._equipment[stage.name]) if isinstance(stage, Step) else ():
            self.runner.note(worker, worker.result_without_start(status, why))
            workers.append(self.runner.result(worker))
        rule = stage.on_failure if isinstance(stage, Step) else "fail_fast"
        result = StepResult(step=stage.name, on_failure=rule, status=status, worker_results=tuple(workers), error=why)
        return StageOutcome(result=result, is_met=stage.is_optional)

    async def _outcome(
        self, step: Step, base: str | None, results: tuple[WorkerResult, ...], judge: Judge | None
    ) -> StageOutcome:
        status = step_status(Rule.on_failure(step.on_failure), [result.status_for_step for result in results])
        result = StepResult(step=step.name, on_failure=step.on_failure, status=status, worker_results=results)
        try:
            return await self._hand_on(step, base, result, judge)
        except FAULTS as error:  # the results exist all the same
            return fail_stage(step, StageOutcome(result=result, is_met=False, commit=base), str(error))

    async def _hand_on(self, step: Step, base: str | None, result: StepResult, judge: Judge | None) -> StageOutcome:
        """Choose one of the workers if the step selects, and collect what they left."""
        if step.select is not None:
            result = await select_worker(self.runner, step, result, base, judge)
        artifacts = self._artifacts(step, result)
        whole = [part for parts in artifacts.values() for part in parts]
        if whole:
            result = replace(result, artifacts=store_artifacts(self.context, f"{self.context.run}-{step.name}", whole))
        outcome = StageOutcome(
            result=result,
            is_met=is_good_enough(step, result.status),
            commit=base,
            artifacts=artifacts,
        )
        return await self._find_result_commit(step, outcome, base)

    def _artifacts(self, step: Step, result: StepResult) -> dict[str, tuple[ProducedArtifact, ...]]:
        """Combine the workers' artifacts by name; if a worker was chosen, only its own count."""
        workers = [worker for worker in result.worker_results if result.selected in (None, worker.index)]
        left = [read_back(worker.artifacts, step.artifacts) if worker.status.is_good else () for worker in workers]
        if sum(len(part.content) for parts in left for part in parts) > MOST_BYTES:
            raise Broken(f"the artifacts of all its workers are larger than {MOST_BYTES // 2**20} MiB in total")
        by_name = {
            artifact.name: [_find_artifact(parts, artifact.name) for parts in left] for artifact in step.artifacts
        }
        return {
            name: made
            for name, parts in by_name.items()
            if (made := merge_artifacts(parts, always=step.matrix is not None or bool(step.queue)))
        }

    async def _find_result_commit(self, step: Step, outcome: StageOutcome, base: str | None) -> StageOutcome:
        """Return what dependants build on: the work of the only or chosen worker, or the merged work of a matrix."""
        if step.matrix is not None or step.queue:
            return await self._merge_matrix(step, outcome, base)
        # Several workers of one step did the same task: which of them to build on must be said.
        spoken = outcome.spokesman
        commit = spoken.commit if spoken is not None and spoken.status.is_good else None
        return outcome if commit is None else replace(outcome, commit=commit)

    async def _merge_matrix(self, step: Step, outcome: StageOutcome, base: str | None) -> StageOutcome:
        good = [result for result in outcome.result.worker_results if result.status.is_good and result.commit]
        try:
            parts = [Contribution(result.session, result.commit) for result in good]
            commit = (await merge_parts(self.context, step.name, parts)).commit
        except Unstacked as error:
            return replace(outcome, conflict=f"{step.name}: {error}{_of_artifacts(step, error)}")
        return replace(outcome, commit=commit or base)


def make_all_workers(steps: StepRunner, wanted: Sequence[Step]) -> list[WorkerSpec]:
    """Make the workers of steps without dependencies, for a run by one rule."""
    return [worker for step in wanted for worker in steps.make_workers(step, step.base, TemplateScope(), {})]


def _of_artifacts(step: Step, error: Unstacked) -> str:
    """Suggest a fix if the cells of a matrix leave an artifact at the same path."""
    shared = [artifact.path for artifact in step.artifacts if artifact.path in error.paths]
    if not shared:
        return ""
    how = "put the cell into its path, like `report-{{ matrix.AXIS }}.json`"
    return f"; each worker leaves its own {', '.join(shared)}: {how}"


def _find_artifact(parts: Sequence[ProducedArtifact], name: str) -> ProducedArtifact | None:
    return next((part for part in parts if part.name == name), None)
