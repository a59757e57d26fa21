"""`shoal status`: the status of a run."""

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo, Run
from shoal.cli.output import Paint, escape, program
from shoal.cli.render.approve import waiting_document, waiting_lines
from shoal.cli.render.columns import ago, columns, count, join_cells, tone
from shoal.cli.render.merge import delivery_line, merge_lines
from shoal.cli.render.overlaps import overlap_lines
from shoal.cli.render.report import (
    error_lines,
    headline,
    resources_text,
    setting_lines,
    step_lines,
    usage_text,
    worker_lines,
)
from shoal.cli.repository import find_place
from shoal.cli.run_output import fit_terminal
from shoal.model.results import RunReport, WorkerResult
from shoal.model.status import Status
from shoal.store.documents import run_document, text
from shoal.store.fold import report
from shoal.store.lookup import find_run
from shoal.store.paths import StatePaths
from shoal.store.progress import RunProgress, RunTail
from shoal.store.run_state import RunState

SHOWN = 5
MOST_LOGS = 50
"""With more running agents than this, their logs are not read, so that `shoal status` stays fast."""


def status_lines(
    report: RunReport,
    others: Sequence[RunState],
    *,
    older: int = 0,
    paint: Paint,
    waiting: Sequence[str] = (),
    merging: Sequence[str] = (),
    doing: Mapping[str, str] | None = None,
    width: int | None = None,
) -> Iterator[str]:
    """Yield the headline, workers, what the run waits for, its merge, and other runs, of which *older* are left out."""
    yield headline(report, paint)
    yield from error_lines(report, paint)
    yield ""
    if lines := [*worker_lines(report, paint, width=width, doing=doing), *step_lines(report, paint)]:
        yield from (*lines, "")
    if report.queues:
        yield from (*queue_lines(report), "")
    if waiting:
        yield from (*waiting, "")
    if report.overlaps:
        yield from (*overlap_lines(report.overlaps, paint), "")
    if merging:
        yield from (*merging, "")
    yield from setting_lines(report)
    if any(map(_is_left, report.workers)):
        yield "interrupted: Shoal was killed; `shoal clean` or the next run recovers the work"
    if others:
        more = f"; {older} older" if older else ""
        yield f"other runs (`shoal status RUN` shows one{more}):"
        yield from _others(others, paint)


def claim_lines(run: RunState, now: float) -> Iterator[str]:
    """Say what running agents are about to change."""
    for claim in run.claims:
        if claim.until > now:
            why = f": {output.flat(claim.why)}" if claim.why else ""
            yield f"{escape(claim.agent)} claims {escape(claim.pattern)}{why}"


def queue_lines(report: RunReport) -> Iterator[str]:
    """Describe how far each queue is."""
    for queue in report.queues:
        failed = f"{queue.failed} failed, " if queue.failed else ""
        counts = f"{queue.done} done, {failed}{queue.at_work} at work, {queue.waiting} waiting"
        yield f"queue {escape(queue.name)}: {count(queue.total, 'task')}: {counts}"


def merging_lines(run: RunState, program: str, paint: Paint) -> Iterator[str]:
    """Describe what was merged and delivered, and what conflicts."""
    if run.merge is not None:
        yield from merge_lines(run.merge, program, paint)
    shown = None if run.merge is None or run.merge.delivery is None else run.merge.delivery.into
    yield from (delivery_line(delivery, paint) for into, delivery in run.deliveries.items() if into != shown)


def _others(runs: Sequence[RunState], paint: Paint) -> Iterator[str]:
    rows = columns([(escape(run.run), run.status.value, ago(time.time() - run.started_at)) for run in runs])
    for run, row in zip(runs, rows, strict=True):
        row[1] = paint(row[1], tone(run.status))
        yield f"  {join_cells(row)}"


def describe_work(paths: StatePaths, report: RunReport) -> dict[str, str]:
    """Describe the last actions of running agents, and what the others used of the machine."""
    workers = report.workers
    found = {worker.session: f"used: {used}" for worker in workers if (used := resources_text(worker.resources))}
    running = [worker.session for worker in workers if worker.status is Status.RUNNING]
    if not 0 < len(running) <= MOST_LOGS:
        return found
    progress = RunProgress()
    for recorded in RunTail(paths, report.run).read():
        progress.take(recorded)
    for agent in filter(None, map(progress.find, running)):
        spent = usage_text(agent.usage)
        parts = (agent.phase.value, output.flat(agent.action), "failed" if agent.has_failed else "", spent)
        found[agent.session] = f"doing: {'; '.join(filter(None, parts))}"
    return found


def _is_left(worker: WorkerResult) -> bool:
    """Return whether a killed agent's work is still to be recovered; recovered work has an `error`."""
    return worker.status.is_interrupted and worker.error is None


def status_document(run: RunState, report: RunReport) -> dict[str, object]:
    """Give the *report* of *run* as a document, with what it waits for and where its work was delivered."""
    deliveries = [delivery.as_fields() for delivery in run.deliveries.values()]
    waits = {} if run.status.is_ended else {"waits_for": run.waits_for}
    claims = [claim.as_fields() for claim in run.claims if claim.until > time.time()]
    return run_document(report) | {
        "waiting": waiting_document(run),
        **waits,
        "deliveries": deliveries,
        "claims": claims,
    }


def command(run: Run = None, json: Json = False, repo: Repo = HERE) -> int:
    """Show the status of a run; by default, the latest."""
    place = asyncio.run(find_place(repo))
    state = place.state()
    chosen = find_run(state, run)
    current = report(chosen, time.time())
    if json:
        output.print_out(text(status_document(chosen, current)))
        return 0
    names = [name for name in reversed(list(state.runs)) if name != chosen.run]
    others = [state.runs[name] for name in names[:SHOWN]]  # no others are read: there may be thousands
    waiting = [*claim_lines(chosen, time.time()), *waiting_lines(chosen, output.paint())]
    if chosen.waits_for and not chosen.status.is_ended:
        waiting.insert(0, f"waiting: {escape(chosen.waits_for)}")
    merging = list(merging_lines(chosen, program(), output.paint()))
    older = max(0, len(names) - SHOWN)
    width = shutil.get_terminal_size().columns if output.is_terminal() else None
    doing = describe_work(place.paths, current)
    lines = status_lines(
        current, others, older=older, paint=output.paint(), waiting=waiting, merging=merging, doing=doing, width=width
    )
    output.print_out("\n".join(fit_terminal(lines)))
    return 0
