"""How a run stands, and which others there are."""

from collections.abc import Iterator, Sequence

from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.columns import tone
from shoal.cli.render.report import headline, standing_lines, worker_lines
from shoal.model.results import RunReport, WorkerResult
from shoal.model.status import Status
from shoal.store.fold import RunState

SHOWN = 5


def status_lines(report: RunReport, others: Sequence[RunState], *, paint: Paint) -> Iterator[str]:
    """Give the run's headline, its workers, what it stood on, and the names of the latest other runs."""
    yield headline(report, paint)
    yield ""
    yield from worker_lines(report, paint)
    yield ""
    yield from standing_lines(report)
    if any(_is_left(worker) for step in report.steps for worker in step.worker_results):
        yield "lost: its Shoal was killed; what is left of its work is brought in by `shoal clean`, or by the next run"
    if others:
        named = (f"{plain(run.run)} ({paint(run.status.value, tone(run.status))})" for run in others[: -SHOWN - 1 : -1])
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        yield f"other runs: {', '.join(named)}{more}"


def _is_left(worker: WorkerResult) -> bool:
    """Say whether a killed agent's work still lies where it was: what was brought in says so in `error`."""
    return worker.status is Status.LOST and worker.error is None
