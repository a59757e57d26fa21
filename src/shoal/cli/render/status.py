"""How a run stands, and which others there are."""

import time
from collections.abc import Iterator, Sequence

from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.columns import ago, columns, count, joined, tone
from shoal.cli.render.merge import delivered_line, merge_lines
from shoal.cli.render.overlaps import overlap_table
from shoal.cli.render.report import headline, standing_lines, step_lines, worker_lines
from shoal.model.results import RunReport, WorkerResult
from shoal.model.status import Status
from shoal.store.fold import RunState

SHOWN = 5


def status_lines(
    report: RunReport,
    others: Sequence[RunState],
    *,
    paint: Paint,
    waiting: Sequence[str] = (),
    merging: Sequence[str] = (),
) -> Iterator[str]:
    """Give the run's headline, its workers, what it is *waiting* for, what was merged, and the latest other runs."""
    yield headline(report, paint)
    yield ""
    if lines := [*worker_lines(report, paint), *step_lines(report, paint)]:
        yield from (*lines, "")
    if waiting:
        yield from (*waiting, "")
    if report.overlaps:
        number = count(len(report.overlaps), "pair")
        yield f"{paint('overlap:', 'warn')} {number} of sessions changed the same files"
        yield from (*overlap_table(report.overlaps, paint), "")
    if merging:
        yield from (*merging, "")
    yield from standing_lines(report)
    if any(_is_left(worker) for step in report.steps for worker in step.worker_results):
        yield "lost: its Shoal was killed; what is left of its work is brought in by `shoal clean`, or by the next run"
    if others:
        more = f", {len(others) - SHOWN} more before them" if len(others) > SHOWN else ""
        yield f"other runs (`shoal status RUN` shows one{more}):"
        yield from _others(others[: -SHOWN - 1 : -1], paint)


def merging_lines(run: RunState, program: str, paint: Paint) -> Iterator[str]:
    """Say what was merged, into what, and what is left with conflicts."""
    if run.merge is not None:
        yield from merge_lines(run.merge, program, paint)
    told = None if run.merge is None or run.merge.delivery is None else run.merge.delivery.into
    yield from (delivered_line(one, paint) for into, one in run.deliveries.items() if into != told)


def _others(runs: Sequence[RunState], paint: Paint) -> Iterator[str]:
    rows = columns([(plain(run.run), run.status.value, ago(time.time() - run.started_at)) for run in runs])
    for run, row in zip(runs, rows, strict=True):
        row[1] = paint(row[1], tone(run.status))
        yield f"  {joined(row)}"


def _is_left(worker: WorkerResult) -> bool:
    """Say whether a killed agent's work still lies where it was: what was brought in says so in `error`."""
    return worker.status is Status.LOST and worker.error is None
