"""One step: its workers run by its rule, and what it hands on to those that need it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.engine.artifacts import kept, read_back
from shoal.engine.cells import cells_done, cells_of
from shoal.engine.dispatch import Dispatch
from shoal.engine.job import Job
from shoal.engine.jobs import Equipment, jobs_of, unrendered
from shoal.engine.outcome import Outcome
from shoal.engine.scope import Scope
from shoal.engine.selecting import Judge, chosen, judge_of
from shoal.engine.session import FAULTS
from shoal.engine.site import Site
from shoal.engine.stack import Unstacked, stacked
from shoal.engine.stage_end import ended_well, failed
from shoal.engine.together import together, verdict
from shoal.errors import BadInput, Broken
from shoal.model.artifact import Produced, merged
from shoal.model.assignment import Assignment
from shoal.model.matrix import Cell
from shoal.model.plan import Stage, Step, everything
from shoal.model.results import StepResult, WorkerResult
from shoal.model.rule import Rule
from shoal.model.status import Status
from shoal.store.door import RequestDoor

MOST_BYTES = 64 * 2**20


class Steps:
    """The steps of one run: what their jobs are run with, and where answers for gates come in."""

    def __init__(
        self,
        dispatch: Dispatch,
        equipment: Mapping[str, Equipment],
        reviewers: Mapping[str, Assignment],
        door: RequestDoor,
        *,
        approve_all: bool = False,
    ) -> None:
        self.dispatch = dispatch
        self.reviewers = reviewers
        self.door = door
        self.approve_all = approve_all
        self._equipment = equipment

    @property
    def site(self) -> Site:
        """What the run stands on."""
        return self.dispatch.site

    async def done(self, step: Step, base: str | None, scope: Scope, needs: Mapping[str, Outcome]) -> Outcome:
        """Run the workers of *step* from *base* to their end, and say what it hands on."""
        cells = None if step.matrix is None else cells_of(step.matrix, needs)
        jobs = self.jobs(step, base, scope, needs, cells)
        judge = judge_of(step, scope, self.reviewers)
        if why := Rule.on_failure(step.on_failure).why_not(len(jobs)):
            raise BadInput(why)
        if cells is None:
            results = await together(self.dispatch, jobs, Rule.on_failure(step.on_failure))
        else:
            results = await cells_done(self.dispatch, step, jobs, cells)
        return await self._outcome(step, base, results, judge)

    def jobs(
        self,
        step: Step,
        base: str | None,
        scope: Scope,
        needs: Mapping[str, Outcome],
        cells: Sequence[Cell] | None = None,
    ) -> list[Job]:
        """Make the jobs of *step*."""
        return jobs_of(step, self._equipment[step.name], base, scope, needs, cells, self.reviewers)

    def forget(self, stage: Stage) -> None:
        """Let go of the results of *stage* and of all that is inside of it."""
        names = {one.name for one in everything([stage])}
        for place in [place for place in self.dispatch.results if place.step in names]:
            del self.dispatch.results[place]

    def has_begun(self, name: str) -> bool:
        """Say whether there is any result of a worker of that step."""
        return any(place.step == name for place in self.dispatch.results)

    def results(self, step: Step) -> tuple[WorkerResult, ...]:
        """Give what there is of a step that was stopped."""
        if step.matrix is not None:
            mine = [one for place, one in self.dispatch.results.items() if place.step == step.name]
            return tuple(sorted(mine, key=lambda one: one.index))
        return tuple(self.dispatch.result(job) for job in unrendered(step, self._equipment[step.name]))

    def unstarted(self, stage: Stage, status: Status, why: str) -> Outcome:
        """Note that *stage* never began, and why."""
        workers: list[WorkerResult] = []
        for job in unrendered(stage, self._equipment[stage.name]) if isinstance(stage, Step) else ():
            self.dispatch.note(job, job.unstarted(status, why))
            workers.append(self.dispatch.result(job))
        rule = stage.on_failure if isinstance(stage, Step) else "fail_fast"
        result = StepResult(step=stage.name, on_failure=rule, status=status, worker_results=tuple(workers), error=why)
        return Outcome(result=result, is_met=stage.is_optional)

    async def _outcome(
        self, step: Step, base: str | None, results: tuple[WorkerResult, ...], judge: Judge | None
    ) -> Outcome:
        status = verdict(Rule.on_failure(step.on_failure), results)
        told = StepResult(step=step.name, on_failure=step.on_failure, status=status, worker_results=results)
        try:
            return await self._handed_on(step, base, told, judge)
        except FAULTS as error:  # the results are there all the same
            return failed(step, Outcome(result=told, is_met=False, commit=base), str(error))

    async def _handed_on(self, step: Step, base: str | None, told: StepResult, judge: Judge | None) -> Outcome:
        """Choose from among the workers where that was asked for, and gather what they left."""
        if step.select is not None:
            told = await chosen(self.dispatch, step, told, base, judge)
        artifacts = self._artifacts(step, told)
        whole = [part for parts in artifacts.values() for part in parts]
        if whole:
            told = replace(told, artifacts=kept(self.site, f"{self.site.run}-{step.name}", whole))
        outcome = Outcome(
            result=told,
            is_met=ended_well(step, told.status),
            commit=base,
            artifacts=artifacts,
        )
        return await self._built(step, outcome, base)

    def _artifacts(self, step: Step, told: StepResult) -> dict[str, tuple[Produced, ...]]:
        """Make one of what the workers left under each name; where one worker was chosen, its own counts alone."""
        workers = [one for one in told.worker_results if told.selected in (None, one.index)]
        left = [read_back(one.artifacts, step.artifacts) if one.status.is_good else () for one in workers]
        if sum(len(part.content) for parts in left for part in parts) > MOST_BYTES:
            raise Broken(f"the artifacts of all its workers are larger than {MOST_BYTES // 2**20} MiB together")
        by_name = {one.name: [_named(parts, one.name) for parts in left] for one in step.artifacts}
        return {
            name: made for name, parts in by_name.items() if (made := merged(parts, always=step.matrix is not None))
        }

    async def _built(self, step: Step, outcome: Outcome, base: str | None) -> Outcome:
        """Say what those that need the step build on: the only or the chosen worker's work, or a matrix's together."""
        if step.matrix is not None:
            return await self._matrix_built(step, outcome, base)
        # Several workers of one step did the same task: which of them to build on is nobody's guess.
        spoken = outcome.spokesman
        commit = spoken.commit if spoken is not None and spoken.status.is_good else None
        return outcome if commit is None else replace(outcome, commit=commit)

    async def _matrix_built(self, step: Step, outcome: Outcome, base: str | None) -> Outcome:
        good = [one for one in outcome.result.worker_results if one.status.is_good and one.commit]
        try:
            commit = await stacked(
                self.site, step.name, [one.session for one in good], [str(one.commit) for one in good]
            )
        except Unstacked as error:
            return replace(outcome, conflict=f"{step.name}: {error}")
        return replace(outcome, commit=commit or base)


def all_jobs(steps: Steps, wanted: Sequence[Step]) -> list[Job]:
    """Make the jobs of steps that wait for nobody, for a run by one rule."""
    return [job for step in wanted for job in steps.jobs(step, step.base, Scope(), {})]


def _named(parts: Sequence[Produced], name: str) -> Produced | None:
    return next((part for part in parts if part.name == name), None)
