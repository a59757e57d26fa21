"""The end of a run: a result for each of its stages, also for those that were stopped or never began."""

from shoal.engine.perform import Performance
from shoal.engine.stage_end import GOOD_ENOUGH, noted
from shoal.engine.together import verdict
from shoal.model.plan import INNER, Plan, Stage, Step, everything
from shoal.model.results import StepResult
from shoal.model.rule import Rule
from shoal.model.status import Status


async def concluded(performance: Performance, plan: Plan) -> tuple[StepResult, ...]:
    """Say how each stage ended; one that was stopped or never began is recorded only here."""
    found: list[StepResult] = []
    for stage in everything(plan.steps):
        if (outcome := performance.outcomes.get(stage.name)) is not None:
            found.append(outcome.result)
        elif not _is_inner(stage.name) or performance.steps.has_begun(stage.name):
            result = _stopped(performance, plan, stage)
            await noted(performance.steps.site, result)
            found.append(result)
    return (*found, *_judges(performance, {one.step for one in found}))


def _judges(performance: Performance, known: set[str]) -> list[StepResult]:
    """Give the sessions of those who chose between workers: no step of the plan, but their usage is the run's."""
    return [
        StepResult(
            step=place.step,
            on_failure="fail_fast",
            status=Status.SUCCEEDED if one.status.is_good else Status.FAILED,
            worker_results=(one,),
            error=one.error,
        )
        for place, one in performance.steps.dispatch.results.items()
        if place.step not in known and place.step.endswith(f"{INNER}judge")
    ]


def run_status(plan: Plan, performance: Performance, ended: tuple[StepResult, ...]) -> Status:
    """Say how the whole run ended."""
    if plan.rule is not None:
        return verdict(plan.rule, [worker for step in ended for worker in step.worker_results])
    spared = {stage.name for stage in plan.steps if stage.is_optional}
    spared |= {name for name, one in performance.outcomes.items() if one.is_passed_over or _is_inner(name)}
    statuses = {one.status for one in ended if one.step not in spared and not _is_inner(one.step)}
    if statuses <= {Status.SUCCEEDED}:
        return Status.SUCCEEDED
    if Status.SUCCEEDED in statuses or Status.DEGRADED in statuses:
        return Status.DEGRADED
    return Status.CANCELLED if statuses == {Status.CANCELLED} else Status.FAILED


def _is_inner(name: str) -> bool:
    return INNER in name


def _stopped(performance: Performance, plan: Plan, stage: Stage) -> StepResult:
    if not isinstance(stage, Step):
        return StepResult(step=stage.name, on_failure="fail_fast", status=Status.CANCELLED, worker_results=())
    results = performance.steps.results(stage)
    # By the plan's own rule a step is not judged alone: its workers were stopped for the sake of others.
    rule = Rule("settled") if plan.rule else Rule.on_failure(stage.on_failure)
    status = verdict(rule, results)
    if plan.rule is None and status in GOOD_ENOUGH:  # its workers had ended, and the step had not
        status = Status.CANCELLED
    return StepResult(step=stage.name, on_failure=stage.on_failure, status=status, worker_results=results)
