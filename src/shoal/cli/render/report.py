"""The report that stands at the end of a run: what came of it, where it is, and what to type next."""

from collections.abc import Iterator, Sequence

from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.columns import columns, count, heading, joined, seconds, tone
from shoal.git.overlap import Overlap
from shoal.model.results import RunReport, WorkerResult

LIMITS = "time only in this version"
SHOWN = 20
INDENT = "  "


def report_lines(report: RunReport, shared: Sequence[Overlap], *, paint: Paint, program: str) -> Iterator[str]:
    """Give the whole report."""
    yield ""
    yield headline(report, paint)
    yield ""
    yield from worker_lines(report, paint)
    yield from _overlap_lines(report, shared, paint)
    yield ""
    yield from standing_lines(report)
    yield from _next_lines(report, paint, program)


def headline(report: RunReport, paint: Paint) -> str:
    """Say in one line how the run ended."""
    workers = _workers(report)
    good = sum(worker.status.is_good for worker in workers)
    status = paint(report.status.value, tone(report.status))
    took = f" in {seconds(report.duration_seconds)}" if report.status.is_ended else ""
    return f"{paint(plain(report.run), 'bold')} {status}: {good} of {count(len(workers), 'agent')} did their work{took}"


def worker_lines(report: RunReport, paint: Paint) -> Iterator[str]:
    """Give the table of workers, each with what a person should know of it below."""
    workers = _workers(report)
    if not workers:
        return
    head, *rows = columns([("session", "status", "files", "time", "branch"), *map(_row, workers)])
    yield INDENT + heading(head, paint)
    for worker, row in zip(workers, rows, strict=True):
        row[1] = paint(row[1], tone(worker.status))
        yield INDENT + joined(row)
        yield from (f"{INDENT}{INDENT}{line}" for line in _remarks(worker))


def standing_lines(report: RunReport) -> Iterator[str]:
    """Say what the run stood on."""
    yield f"wall: {plain(report.wall)} · workspace: {plain(report.workspace)} · limits: {LIMITS}"
    yield f"base: {plain(report.base)}"
    yield from (f"note: {plain(note)}" for note in report.notes)


def _workers(report: RunReport) -> list[WorkerResult]:
    return [worker for step in report.steps for worker in step.worker_results]


def _row(worker: WorkerResult) -> tuple[str, ...]:
    took = seconds(worker.duration_seconds) if worker.status.is_ended else "-"
    files = str(worker.files_changed) if worker.status.is_ended else "-"
    return plain(worker.session), worker.status.value, files, took, plain(worker.branch or "-")


def _remarks(worker: WorkerResult) -> Iterator[str]:
    if worker.error:
        yield f"why: {plain(worker.error)}"
    if worker.unkept:
        yield f"not kept: {_some(worker.unkept)}"
    if worker.ignored:
        yield f"left out by the ignore rules: {count(worker.ignored, 'file')}"
    if worker.kept_refs:
        yield f"its other branches and stashes: {_some(worker.kept_refs)}"
    if worker.raw:
        yield f"its raw files are still in {plain(worker.raw)}"


def _overlap_lines(report: RunReport, shared: Sequence[Overlap], paint: Paint) -> Iterator[str]:
    if sum(worker.commit is not None for worker in _workers(report)) < 2:
        return
    yield ""
    if not shared:
        yield "overlap: none, no file was changed on more than one branch"
        return
    changed = f"{count(len(shared), 'file')} changed on more than one branch"
    yield f"{paint('overlap:', 'warn')} {changed}; merging the second one may need you"
    for one in shared[:SHOWN]:
        yield f"{INDENT}{plain(one.path)}: {', '.join(map(plain, one.branches))}"
    if len(shared) > SHOWN:
        yield f"{INDENT}… and {len(shared) - SHOWN} more"


def _next_lines(report: RunReport, paint: Paint, program: str) -> Iterator[str]:
    workers = _workers(report)
    yield ""
    yield paint("next:", "bold")
    if (one := next((one for one in workers if one.branch), None)) is not None:
        yield f"{INDENT}{program} diff {plain(one.session)}"
        yield f"{INDENT}git merge {plain(one.branch or '')}"
        yield f"{INDENT}{program} open {plain(one.session)}"
    if (one := next((one for one in workers if not one.status.is_good and one.attempts), None)) is not None:
        yield f"{INDENT}{program} logs {plain(one.session)}"
    if not any(one.attempts for one in workers):
        yield f"{INDENT}{program} run"
    elif all(one.branch is None and one.status.is_good for one in workers):
        yield f"{INDENT}{program} logs {plain(workers[0].session)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(plain, names[:SHOWN])) + more
