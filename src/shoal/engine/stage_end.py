"""When a stage begins and how it ends, judged and recorded."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from shoal.engine.outcome import Outcome
from shoal.engine.site import Site
from shoal.model.events import StepEnded, StepStarted
from shoal.model.plan import Stage, Step
from shoal.model.results import StepResult
from shoal.model.status import Status

GOOD_ENOUGH = (Status.SUCCEEDED, Status.DEGRADED)


async def started(site: Site, stages: Iterable[Stage], before: Container[str] = ()) -> None:
    """Record that *stages* have their turn from now on, those that were started *before* once more."""
    await site.ledger.append(*(_start(site.run, stage, is_again=stage.name in before) for stage in stages))


def _start(run: str, stage: Stage, *, is_again: bool) -> StepStarted:
    workers, rule = (stage.workers, stage.on_failure) if isinstance(stage, Step) else (0, "fail_fast")
    return StepStarted(run=run, step=stage.name, workers=workers, on_failure=rule, is_again=is_again)


async def noted(site: Site, result: StepResult) -> None:
    """Record how a stage ended."""
    ended = StepEnded(
        run=site.run,
        step=result.step,
        status=result.status,
        error=result.error,
        selected=result.selected,
        ranking=result.ranking,
        rounds=result.rounds,
        artifacts=result.artifacts,
        unstarted=tuple(one for one in result.worker_results if not one.attempts),
    )
    await site.ledger.append(ended)


def failed(stage: Stage, outcome: Outcome, why: str) -> Outcome:
    """Say that a stage has failed after its workers had ended, and why; what they did stays."""
    result = replace(outcome.result, status=Status.FAILED, error=why)
    return replace(outcome, result=result, is_met=stage.is_optional)


def ended_well(stage: Stage, status: Status) -> bool:
    """Say whether those that need *stage* may start: it ended well, or partly so where that was asked for."""
    return stage.is_optional or status in GOOD_ENOUGH


def group_status(stages: Iterable[Stage], outcomes: Mapping[str, Outcome]) -> Status:
    """Judge a group as a whole: whatever of it must end well and did not is its failure."""
    counted = [outcomes[one.name] for one in stages if not one.is_optional and not outcomes[one.name].is_passed_over]
    if not all(one.is_met for one in counted):
        return Status.FAILED
    return Status.DEGRADED if any(one.status is Status.DEGRADED for one in counted) else Status.SUCCEEDED
