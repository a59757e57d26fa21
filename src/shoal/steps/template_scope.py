"""What the texts of a stage may name: the input, the run, earlier steps, and the worker itself."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shoal.errors import BadInput
from shoal.model.artifact import ProducedArtifact, under_number
from shoal.model.plan import Stage, local_name
from shoal.model.results import StepResult, WorkerResult
from shoal.pipeline.templates.template import is_true, render_template
from shoal.steps.stage_outcome import StageOutcome

TOLD = ("session", "exit_code", "output", "branch", "commit", "files_changed", "attempts", "duration_seconds", "error")


class LazyMapping(Mapping[str, object]):
    """A mapping that computes its values on access: a text names only a few of many."""

    def __init__(self, make: Callable[[str], object], names: Callable[[], Iterable[str]]) -> None:
        self._make = make
        self._names = names
        self._made: dict[str, object] = {}

    def __getitem__(self, name: str) -> object:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return sum(1 for _ in self._names())


@dataclass(frozen=True, slots=True)
class TemplateScope:
    """Names and their values; each level adds its own."""

    values: Mapping[str, object] = field(default_factory=dict)

    def having(self, **values: object) -> "TemplateScope":
        """Add names."""
        return TemplateScope({**self.values, **values})

    def at(self, stage: Stage, ended: Mapping[str, StageOutcome]) -> "TemplateScope":
        """Add what has *ended*, as seen from *stage*."""
        here = self.having(step={"name": stage.name})
        if not stage.has_texts:  # most stages name nothing, and there may be thousands
            return here
        prefix = stage.name.removesuffix(local_name(stage.name))
        return here.having(
            steps=LazyMapping(lambda name: describe_outcome(ended[prefix + name]), lambda: map(local_name, ended)),
            artifacts=LazyMapping(
                lambda name: contents(ended[prefix + name].artifacts), lambda: map(local_name, ended)
            ),
        )

    def render(self, text: str) -> str:
        """Fill in the placeholders of *text*."""
        return render_template(text, self.values)

    def holds(self, expression: str) -> bool:
        """Return whether *expression* is true."""
        return is_true(expression, self.values)


def describe_outcome(outcome: StageOutcome) -> dict[str, object]:
    """Describe a step under the names that a template may use."""
    spoken = outcome.spokesman
    fields = {name: getattr(spoken, name) for name in TOLD} if spoken else {"output": _outputs(outcome.result)}
    fields["output"] = str(fields["output"]).rstrip("\n")  # as a shell takes the output of a command
    return {
        **fields,
        **aggregate(outcome.result),
        "commit": outcome.commit,
        "artifacts": contents(outcome.artifacts),
        "steps": _describe_inner(outcome),
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
        "skipped_count": result.skipped_count,
        "selected": result.selected,
        "error": result.error or next((worker.error for worker in result.worker_results if worker.error), None),
        "worker_workspaces": [worker.workspace for worker in result.worker_results],
        "worker_results": [_worker(worker) for worker in result.worker_results],
    }


def contents(artifacts: Mapping[str, tuple[ProducedArtifact, ...]]) -> Mapping[str, object]:
    """Return the contents of files: JSON as data, text as text."""
    single = {name: parts[0] for name, parts in artifacts.items() if len(parts) == 1}
    return LazyMapping(lambda name: _value(single[name]), lambda: single)


def _value(artifact: ProducedArtifact) -> object:
    try:
        return artifact.value
    except ValueError as error:
        raise BadInput(f"artifact {artifact.name} cannot be read as data: {error}") from None


def _describe_inner(outcome: StageOutcome) -> Mapping[str, object]:
    inner = {local_name(name): inner_outcome for name, inner_outcome in outcome.inner.items()}
    return LazyMapping(lambda name: describe_outcome(inner[name]), lambda: inner)


def _worker(result: WorkerResult) -> dict[str, object]:
    fields = {name: getattr(result, name) for name in TOLD}
    return {
        "index": result.index,
        "status": result.status.value,
        "item": result.item,
        **fields,
        "artifacts": dict(result.artifacts),
    }


def _outputs(result: StepResult) -> str:
    """Join the outputs of several workers, each under its number."""
    return "\n".join(f"## worker {worker.index}\n{under_number(worker.output)}" for worker in result.worker_results)
