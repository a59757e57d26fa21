"""How a stage ended, and what it passes on to its dependants."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from shoal.model.artifact import ProducedArtifact
from shoal.model.events import StepEnded, StepStarted
from shoal.model.plan import Stage, Step
from shoal.model.results import StepResult, WorkerResult
from shoal.model.status import Status, group_status
from shoal.sessions.context import RunContext


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """The result of a stage, and what it passes on."""

    result: StepResult
    is_met: bool
    """Whether its dependants may start."""
    commit: str | None = None
    """What its dependants start from; `None` is the run's base."""
    conflict: str | None = None
    """Why nothing can build on its work: the changes of its workers conflict."""
    artifacts: Mapping[str, tuple[ProducedArtifact, ...]] = field(default_factory=dict)
    """The files that it passes on, by the names of their artifacts."""
    inner: Mapping[str, "StageOutcome"] = field(default_factory=dict)
    """How the stages inside it ended."""
    is_passed_over: bool = False
    """Whether it was skipped because its condition is false."""

    @property
    def spokesman(self) -> WorkerResult | None:
        """The worker that represents the step: the chosen one, or the only one."""
        workers = self.result.worker_results
        if self.result.selected is not None:
            return next((worker for worker in workers if worker.index == self.result.selected), None)
        return workers[0] if len(workers) == 1 else None

    @property
    def status(self) -> Status:
        """Its status."""
        return self.result.status


async def record_stages_started(context: RunContext, stages: Iterable[Stage], before: Container[str] = ()) -> None:
    """Record that *stages* start now, those started *before* once more."""
    await context.ledger.append(*(_start(context.run, stage, is_again=stage.name in before) for stage in stages))


def _start(run: str, stage: Stage, *, is_again: bool) -> StepStarted:
    workers, rule = (stage.workers, stage.on_failure) if isinstance(stage, Step) else (0, "fail_fast")
    return StepStarted(run=run, step=stage.name, workers=workers, on_failure=rule, is_again=is_again)


async def record_stage_ended(
    context: RunContext, result: StepResult, visit: int = 1, *, is_stopped: bool = False
) -> None:
    """Record how a stage ended; one that *is_stopped* from outside continues when the run is resumed."""
    ended = StepEnded(
        run=context.run,
        step=result.step,
        status=result.status,
        error=result.error,
        selected=result.selected,
        ranking=result.ranking,
        rounds=result.rounds,
        notes=result.notes,
        artifacts=result.artifacts,
        visit=visit,
        is_stopped=is_stopped,
        unstarted=tuple(worker for worker in result.worker_results if not worker.attempts),
    )
    await context.ledger.append(ended)


def fail_stage(stage: Stage, outcome: StageOutcome, why: str) -> StageOutcome:
    """Mark a stage as failed after its workers had ended, and say why; their work stays."""
    result = replace(outcome.result, status=Status.FAILED, error=why)
    return replace(outcome, result=result, is_met=stage.is_optional)


def is_good_enough(stage: Stage, status: Status) -> bool:
    """Return whether the dependants of *stage* may start: it succeeded, or partly so where that is allowed."""
    return stage.is_optional or status.is_usable


def judge_group(stages: Iterable[Stage], outcomes: Mapping[str, StageOutcome]) -> Status:
    """Return the status of a group: it fails if a required stage failed."""
    counted = [
        outcomes[stage.name] for stage in stages if not stage.is_optional and not outcomes[stage.name].is_passed_over
    ]
    are_met = all(outcome.is_met for outcome in counted)
    return group_status([outcome.status for outcome in counted], are_met=are_met)
