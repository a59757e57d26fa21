"""How a stage ended, for those that need it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.artifact import Produced
from shoal.model.results import StepResult, WorkerResult
from shoal.model.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a stage, and what it hands on."""

    result: StepResult
    is_met: bool
    """Whether those that need it may start."""
    commit: str | None = None
    """What those that need it start from; `None` is the run's base."""
    conflict: str | None = None
    """Why its work cannot be built on, where its workers' changes do not go together."""
    artifacts: Mapping[str, tuple[Produced, ...]] = field(default_factory=dict)
    """The files that it hands on, by the names of their artifacts."""
    inner: Mapping[str, "Outcome"] = field(default_factory=dict)
    """How the stages inside of it ended."""
    is_passed_over: bool = False
    """Whether its condition did not hold, so that there was nothing to do."""

    @property
    def spokesman(self) -> WorkerResult | None:
        """The worker that speaks for the step: the chosen one, or the only one."""
        workers = self.result.worker_results
        if self.result.selected is not None:
            return next((one for one in workers if one.index == self.result.selected), None)
        return workers[0] if len(workers) == 1 else None

    @property
    def status(self) -> Status:
        """How it ended."""
        return self.result.status
