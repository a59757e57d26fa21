"""One step: its workers run by its rule, and what it hands on to those that need it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.errors import FAULTS, BadInput, Broken
from shoal.model.artifact import Produced, merge_artifacts
from shoal.model.matrix import Cell
from shoal.model.plan import Stage, Step, everything
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import StepResult, WorkerResult
from shoal.model.rule import Rule
from shoal.model.status import Status, step_status
from shoal.sessions.artifacts import read_back, store_artifacts
from shoal.sessions.context import RunContext
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerRunner
from shoal.steps.dag import Contribution, Unstacked, merge_parts
from shoal.steps.outcome import StageOutcome, fail_stage, is_good_enough
from shoal.steps.select import Judge, judge_of, select_worker
from shoal.steps.template_scope import TemplateScope
from shoal.steps.workers import (
    Equipment,
    cells_done,
    cells_of,
    jobs_of,
    make_unstarted_jobs,
    take_recorded,
    together,
)
from shoal.store.requests import RequestDoor

MOST_BYTES = 64 * 2**20


class StepRunner:
    """The steps of one run: what their jobs are run with, and where answers for gates come in."""

    def __init__(
        self,
        runner: WorkerRunner,
        equipment: Mapping[str, Equipment],
        reviewers: Mapping[str, ResolvedTask],
        door: RequestDoor,
        *,
        approve_all: bool = False,
    ) -> None:
        self.runner = runner
        self.reviewers = reviewers
        self.door = door
        self.approve_all = approve_all
        self._equipment = equipment
        self.visits: dict[str, int] = {}
        """How often each stage has been entered."""

    @property
    def context(self) -> RunContext:
        """What the run stands on."""
        return self.runner.context

    async def run(
        self, step: Step, base: str | None, scope: TemplateScope, needs: Mapping[str, StageOutcome]
    ) -> StageOutcome:
        """Run the workers of *step* from *base* to their end, and say what it hands on."""
        history, visit = self.runner.history, self.runner.history.enter(step.name)
        self.visits[step.name] = visit.number
        cells = None if step.matrix is None else cells_of(step.matrix, needs)
        jobs = [replace(job, visit=visit.number) for job in self.jobs(step, base, scope, needs, cells)]
        judge = judge_of(step, scope, self.reviewers)
        if why := Rule.on_failure(step.on_failure).why_not(len(jobs)):
            raise BadInput(why)
        if visit in history.steps:
            results = take_recorded(self.runner, jobs, [history.steps[visit].get(job.index) for job in jobs])
        elif cells is None:
            results = await together(self.runner, jobs, Rule.on_failure(step.on_failure))
        else:
            results = await cells_done(self.runner, step, jobs, cells)
        return await self._outcome(step, base, results, judge)

    def jobs(
        self,
        step: Step,
        base: str | None,
        scope: TemplateScope,
        needs: Mapping[str, StageOutcome],
        cells: Sequence[Cell] | None = None,
    ) -> list[WorkerSpec]:
        """Make the jobs of *step*."""
        return jobs_of(step, self._equipment[step.name], base, scope, needs, cells, self.reviewers)

    def forget(self, stage: Stage) -> None:
        """Let go of the results of *stage* and of all that is inside of it."""
        names = {one.name for one in everything([stage])}
        for place in [place for place in self.runner.results if place.step in names]:
            del self.runner.results[place]

    def has_begun(self, name: str) -> bool:
        """Say whether there is any result of a worker of that step."""
        return any(place.step == name for place in self.runner.results)

    def results(self, step: Step) -> tuple[WorkerResult, ...]:
        """Give what there is of a step that was stopped."""
        if step.matrix is not None:
            mine = [one for place, one in self.runner.results.items() if place.step == step.name]
            return tuple(sorted(mine, key=lambda one: one.index))
        return tuple(self.runner.result(worker) for worker in make_unstarted_jobs(step, self._equipment[step.name]))

    def skip(self, stage: Stage, status: Status, why: str) -> StageOutcome:
        """Note that *stage* never began, and why."""
        workers: list[WorkerResult] = []
        for worker in make_unstarted_jobs(stage, self._equipment[stage.name]) if isinstance(stage, Step) else ():
            self.runner.note(worker, worker.result_without_start(status, why))
            workers.append(self.runner.result(worker))
        rule = stage.on_failure if isinstance(stage, Step) else "fail_fast"
        result = StepResult(step=stage.name, on_failure=rule, status=status, worker_results=tuple(workers), error=why)
        return StageOutcome(result=result, is_met=stage.is_optional)

    async def _outcome(
        self, step: Step, base: str | None, results: tuple[WorkerResult, ...], judge: Judge | None
    ) -> StageOutcome:
        status = step_status(Rule.on_failure(step.on_failure), [result.status for result in results])
        told = StepResult(step=step.name, on_failure=step.on_failure, status=status, worker_results=results)
        try:
            return await self._hand_on(step, base, told, judge)
        except FAULTS as error:  # the results are there all the same
            return fail_stage(step, StageOutcome(result=told, is_met=False, commit=base), str(error))

    async def _hand_on(self, step: Step, base: str | None, told: StepResult, judge: Judge | None) -> StageOutcome:
        """Choose from among the workers where that was asked for, and gather what they left."""
        if step.select is not None:
            told = await select_worker(self.runner, step, told, base, judge)
        artifacts = self._artifacts(step, told)
        whole = [part for parts in artifacts.values() for part in parts]
        if whole:
            told = replace(told, artifacts=store_artifacts(self.context, f"{self.context.run}-{step.name}", whole))
        outcome = StageOutcome(
            result=told,
            is_met=is_good_enough(step, told.status),
            commit=base,
            artifacts=artifacts,
        )
        return await self._find_result_commit(step, outcome, base)

    def _artifacts(self, step: Step, told: StepResult) -> dict[str, tuple[Produced, ...]]:
        """Make one of what the workers left under each name; where one worker was chosen, its own counts alone."""
        workers = [one for one in told.worker_results if told.selected in (None, one.index)]
        left = [read_back(one.artifacts, step.artifacts) if one.status.is_good else () for one in workers]
        if sum(len(part.content) for parts in left for part in parts) > MOST_BYTES:
            raise Broken(f"the artifacts of all its workers are larger than {MOST_BYTES // 2**20} MiB together")
        by_name = {one.name: [_find_artifact(parts, one.name) for parts in left] for one in step.artifacts}
        return {
            name: made
            for name, parts in by_name.items()
            if (made := merge_artifacts(parts, always=step.matrix is not None))
        }

    async def _find_result_commit(self, step: Step, outcome: StageOutcome, base: str | None) -> StageOutcome:
        """Say what those that need the step build on: the only or the chosen worker's work, or a matrix's together."""
        if step.matrix is not None:
            return await self._matrix_built(step, outcome, base)
        # Several workers of one step did the same task: which of them to build on is nobody's guess.
        spoken = outcome.spokesman
        commit = spoken.commit if spoken is not None and spoken.status.is_good else None
        return outcome if commit is None else replace(outcome, commit=commit)

    async def _matrix_built(self, step: Step, outcome: StageOutcome, base: str | None) -> StageOutcome:
        good = [one for one in outcome.result.worker_results if one.status.is_good and one.commit]
        try:
            parts = [Contribution(result.session, result.commit) for result in good]
            commit = (await merge_parts(self.context, step.name, parts)).commit
        except Unstacked as error:
            return replace(outcome, conflict=f"{step.name}: {error}{_of_artifacts(step, error)}")
        return replace(outcome, commit=commit or base)


def all_jobs(steps: StepRunner, wanted: Sequence[Step]) -> list[WorkerSpec]:
    """Make the jobs of steps that wait for nobody, for a run by one rule."""
    return [worker for step in wanted for worker in steps.jobs(step, step.base, TemplateScope(), {})]


def _of_artifacts(step: Step, error: Unstacked) -> str:
    """Say what to do where the cells of a matrix leave one artifact at the same path."""
    shared = [one.path for one in step.artifacts if one.path in error.paths]
    if not shared:
        return ""
    how = "put the cell into its path, like `report-{{ matrix.AXIS }}.json`"
    return f"; each worker leaves its own {', '.join(shared)}: {how}"


def _find_artifact(parts: Sequence[Produced], name: str) -> Produced | None:
    return next((part for part in parts if part.name == name), None)
