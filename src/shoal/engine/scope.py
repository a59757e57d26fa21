"""What the texts of a stage may name: the input, the run, earlier steps, and the worker itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.engine.outcome import Outcome
from shoal.model.artifact import Produced
from shoal.model.plan import Stage, short
from shoal.model.results import StepResult, WorkerResult
from shoal.pipeline.template import is_true, rendered

TOLD = ("session", "exit_code", "output", "branch", "commit", "files_changed", "attempts", "duration_seconds", "error")


@dataclass(frozen=True, slots=True)
class Scope:
    """Names and what they stand for; each level adds its own."""

    values: Mapping[str, object] = field(default_factory=dict)

    def having(self, **values: object) -> "Scope":
        """Add names."""
        return replace(self, values={**self.values, **values})

    def at(self, stage: Stage, ended: Mapping[str, Outcome]) -> "Scope":
        """See what has *ended* from *stage*."""
        here = self.having(step={"name": stage.name})
        if not stage.has_texts:  # most stages name nothing, and there may be thousands
            return here
        steps = {short(name): told(outcome) for name, outcome in ended.items()}
        artifacts = {short(name): contents(outcome.artifacts) for name, outcome in ended.items()}
        return here.having(steps=steps, artifacts=artifacts)

    def rendered(self, text: str) -> str:
        """Fill in the places of *text*."""
        return rendered(text, self.values)

    def holds(self, expression: str) -> bool:
        """Say whether *expression* is true."""
        return is_true(expression, self.values)


def told(outcome: Outcome) -> dict[str, object]:
    """Tell a step by the names that a text may use."""
    spoken = outcome.spokesman
    one = {name: getattr(spoken, name) for name in TOLD} if spoken else {"output": _outputs(outcome.result)}
    return {
        **one,
        **aggregate(outcome.result),
        "commit": outcome.commit,
        "artifacts": contents(outcome.artifacts),
        "steps": {short(name): told(inner) for name, inner in outcome.inner.items()},
    }


def aggregate(result: StepResult) -> dict[str, object]:
    """Give the aggregate of a step (seed 000) as plain data."""
    return {
        "step": result.step,
        "status": result.status.value,
        "total_workers": result.total_workers,
        "success_count": result.success_count,
        "fail_count": result.fail_count,
        "cancelled_count": result.cancelled_count,
        "selected": result.selected,
        "error": result.error or next((one.error for one in result.worker_results if one.error), None),
        "worker_workspaces": [one.workspace for one in result.worker_results],
        "worker_results": [_worker(one) for one in result.worker_results],
    }


def contents(artifacts: Mapping[str, tuple[Produced, ...]]) -> dict[str, object]:
    """Give what files hold: JSON as data, text as text."""
    return {name: parts[0].value for name, parts in artifacts.items() if len(parts) == 1}


def _worker(one: WorkerResult) -> dict[str, object]:
    fields = {name: getattr(one, name) for name in TOLD}
    return {
        "index": one.index,
        "status": one.status.value,
        "item": one.item,
        **fields,
        "artifacts": dict(one.artifacts),
    }


def _outputs(result: StepResult) -> str:
    """Put what several workers said under each other, each under its number."""
    return "\n".join(f"## worker {one.index}\n{one.output}" for one in result.worker_results)
