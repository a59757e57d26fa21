"""The report at the end of a run: the results, where they are, and what to type next."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.cli.output import Paint, escape, flat
from shoal.cli.render.columns import beginning, columns, count, heading, join_cells, seconds, some, tone
from shoal.cli.render.merge import merge_lines, next_after_merge
from shoal.cli.render.overlaps import overlap_lines
from shoal.model.contract import warnings
from shoal.model.results import Purpose, RunReport, StepResult, Usage, WorkerResult
from shoal.model.status import Status

NOT_FOUND = 127
LAST_LINES = 5
UNSEEN = (
    "agents see the system's programs and the first word of their command, not the rest of your PATH; "
    "add folders with `runtime.toolchains`"
)


def why(worker: WorkerResult) -> str | None:
    """Return why a worker failed, escaped; `None` if there is nothing to say."""
    if worker.error and worker.status is Status.OVER_LIMIT:
        return f"{flat(worker.error)}; change its limits with `limits:` in shoal.yaml"
    if worker.error and worker.exit_code == NOT_FOUND and worker.status is Status.FAILED:
        return f"{flat(worker.error)} ({UNSEEN})"
    return _lines(worker) if worker.error else None


def _lines(worker: WorkerResult) -> str:
    """Return the first line, and the last ones indented: they say what went wrong."""
    shown, *rest = (worker.error or "").splitlines() or [""]
    cut = [f"      … `shoal logs {escape(worker.session)}` shows all of it"] if len(rest) > LAST_LINES else []
    return "\n".join([escape(shown), *cut, *(f"      {escape(line)}" for line in rest[-LAST_LINES:])])


def resources_text(resources: Usage) -> str:
    """Format the resources that a session used, as far as the host measures them; empty if it measures none."""
    shown = {
        "memory_peak_mb": "{:,.0f} MB memory at most",
        "memory_average_mb": "{:,.0f} MB on average",
        "cpu_seconds": "{:,.1f} s CPU",
        "disk_mb": "{:,.1f} MB disk",
    }
    return ", ".join(form.format(resources[name]) for name, form in shown.items() if name in resources)


def usage_text(usage: Usage) -> str:
    """Format tokens in and out, and the price if known; empty if nothing was spent."""
    read, written = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    cost = usage.get("cost_usd")
    if not (read or written or cost):
        return ""
    price = f", ${cost:.4f}" if cost is not None else ""
    return f"{read:,.0f} tokens in, {written:,.0f} out{price}"


NAMED = 3
PROMPT = 80 - len("    task: ")
INDENT = "  "
BRANCH = 3
"""The index of the column of branches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What a report needs besides the results: the files *changed* by branch, and parts of commands."""

    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    program: str = "shoal"
    folder: Path = Path()
    can_merge: bool = True


def report_lines(report: RunReport, closing: Closing, paint: Paint) -> Iterator[str]:
    """Yield the whole report."""
    yield ""
    yield headline(report, paint)
    yield from error_lines(report, paint)
    yield ""
    yield from worker_lines(report, paint, closing.changed)
    yield from step_lines(report, paint)
    yield from _overlap_lines(report, closing.changed, paint)
    if report.merge is not None:
        yield ""
        yield from merge_lines(report.merge, closing.program, paint, has_next=False)
    yield ""
    yield from setting_lines(report)
    if advice := list(_next(report, closing)):
        yield ""
        yield paint("next:", "bold")
        yield from (f"{INDENT}{line}" for line in advice)


def headline(report: RunReport, paint: Paint) -> str:
    """Say in one line how the run ended."""
    status = paint(report.status.value, tone(report.status))
    return f"{paint(escape(report.run), 'bold')} {status}: {summary(report)}"


def summary(report: RunReport) -> str:
    """Count the agents that succeeded, and add the duration of the run; verifications do not count as agents."""
    agents = (worker for worker in report.workers if worker.purpose is not Purpose.VERIFY)
    workers = [worker for worker in agents if worker.status is not Status.SKIPPED]
    good = sum(worker.status.is_good for worker in workers)
    took = f" in {seconds(report.duration_seconds)}" if report.duration_seconds else ""
    return f"{_score(good, len(workers), report.status)}{took}"


def error_lines(report: RunReport, paint: Paint) -> Iterator[str]:
    """Say why the run could not finish."""
    if report.error is not None:
        first, *rest = report.error.splitlines() or [""]
        yield f"{paint('error:', 'bad')} {escape(first)}"
        yield from (f"{INDENT}{escape(line)}" for line in rest)


def worker_lines(
    report: RunReport,
    paint: Paint,
    changed: Mapping[str, Sequence[str]] | None = None,
    *,
    width: int | None = None,
    doing: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield the table of workers, with remarks below each.

    With *width*, branches are printed below their rows if the table would be wider; *doing* is what agents are doing.
    """
    workers = report.workers
    if not workers:
        return
    rows = [_row(worker, (changed or {}).get(worker.branch or "", ())) for worker in workers]
    table = columns([("session", "status", "time", "branch", "changes"), *rows])
    is_narrow = width is not None and any(len(INDENT + join_cells(row)) > width for row in table)
    if is_narrow:
        table = [[*row[:BRANCH], *row[BRANCH + 1 :]] for row in table]
    yield INDENT + heading(table[0], paint)
    previous = ""
    for worker, row in zip(workers, table[1:], strict=True):
        row[1] = paint(row[1], tone(worker.status))
        yield INDENT + join_cells(row)
        if is_narrow and worker.branch:
            yield f"{INDENT}{INDENT}branch: {escape(worker.branch)}"
        if worker.prompt and worker.prompt != previous:  # workers of one step share a prompt
            yield f"{INDENT}{INDENT}{paint(f'task: {beginning(worker.prompt, PROMPT)}', 'dim')}"
            previous = worker.prompt
        if action := (doing or {}).get(worker.session):
            yield f"{INDENT}{INDENT}{beginning(action, PROMPT)}"
        if reason := why(worker):
            yield f"{INDENT}{INDENT}why: {reason}"
        yield from (f"{INDENT}{INDENT}{line}" for line in remarks(worker))


def step_lines(report: RunReport, paint: Paint) -> Iterator[str]:
    """Describe what concerns a step as a whole: skipped, repeated, selected a worker."""
    for step in report.steps:
        lines = list(step_remarks(step))
        if not step.status.is_ended:  # not started, or its workers show it
            continue
        if not step.worker_results or lines:
            status = paint(step.status.value, tone(step.status))
            yield f"{INDENT}step {escape(step.step)}: {status}{'; ' if lines else ''}{'; '.join(lines)}"


def step_remarks(step: StepResult) -> Iterator[str]:
    """Yield remarks about a step as a whole, escaped."""
    if step.error and step.error not in {worker.error for worker in step.worker_results}:
        yield flat(step.error)
    if step.rounds > 1:
        yield f"{step.rounds} rounds"
    yield from map(flat, step.notes)
    if step.selected is not None:
        yield f"selected worker {step.selected}"
    for place, row in enumerate(step.ranking, start=1):
        yield f"{place}. worker {row.index} ({', '.join(map(escape, row.reasons)) or 'no reason'})"
    if step.artifacts:
        yield f"artifacts: {', '.join(map(escape, step.artifacts))}"


def setting_lines(report: RunReport) -> Iterator[str]:
    """Yield the sandbox, workspace, limits, base and costs of the run."""
    yield f"sandbox: {escape(report.wall)} · workspace: {escape(report.workspace)}"
    yield f"limits: {escape(report.limits) or 'unknown'}"
    yield f"base: {escape(report.base)}"
    if spent := usage_text(report.usage):
        yield f"spent: {spent}"
    yield from (f"note: {flat(note)}" for note in report.notes)


def _row(worker: WorkerResult, paths: Sequence[str]) -> tuple[str, ...]:
    is_timed = worker.status.is_ended or worker.duration_seconds > 0
    took = seconds(worker.duration_seconds) if is_timed and not worker.status.is_interrupted else "-"
    return (
        escape(worker.session),
        worker.status_text,
        took,
        escape(worker.branch or "-"),
        _changes(worker, paths),
    )


def _changes(worker: WorkerResult, paths: Sequence[str]) -> str:
    if worker.branch is None:
        return "-"
    number = count(worker.files_changed, "file")
    return f"{number}: {some(paths, NAMED)}" if paths else number


def remarks(worker: WorkerResult, *, with_usage: bool = True) -> Iterator[str]:
    """Yield what a person should know about a worker's work, escaped."""
    if worker.purpose is Purpose.VERIFY and not worker.status.is_good:
        yield from (f"    > {escape(line)}" for line in worker.output.splitlines()[-LAST_LINES:])
        yield f"    `shoal logs {escape(worker.session)}` shows all of it"
    if worker.node:
        yield f"on node {escape(worker.node)}"
    if worker.attempts > 1:
        yield f"attempt {worker.attempts}"
    if with_usage and (spent := usage_text(worker.usage)):
        yield f"spent: {spent}"
    for warning in warnings(worker.checks):
        yield escape(warning.splitlines()[0])
    if worker.unkept:
        yield f"not kept: {some(worker.unkept)}"
    yield from map(escape, worker.notes)
    if worker.unconverted:
        yield f"kept unconverted, not in the encoding that .gitattributes names: {some(worker.unconverted)}"
    if worker.executable:
        yield f"review before you merge, these files can run code on your machine: {some(worker.executable)}"
    if worker.secrets:
        yield f"do not push its branch, it contains your secrets: {some(worker.secrets)}"
    if worker.instructions:
        yield f"changes files that agents read as instructions: {some(worker.instructions)}"
    if worker.set_back:
        switch = "`allow_executable_config: true` allows them"
        yield f"ignored settings that earlier agents wrote ({switch}): {some(worker.set_back)}"
    if worker.ignored:
        yield f"left out by ignore rules: {count(worker.ignored, 'file')}"
    if worker.kept_refs:
        yield f"other branches and stashes: {some(worker.kept_refs)}"
    if worker.raw:
        yield f"its raw files are in {escape(worker.raw)}"


def _score(good: int, total: int, status: Status) -> str:
    """Count the agents that succeeded."""
    if not total:
        return "no agent was started"
    return f"{good} of {count(total, 'agent')} succeeded{'' if status.is_ended else ' so far'}"


def _overlap_lines(report: RunReport, changed: Mapping[str, Sequence[str]], paint: Paint) -> Iterator[str]:
    """Describe which files more than one agent changed, or that there are none."""
    good = [worker for worker in report.workers if worker.branch in changed and worker.status.is_good]
    if report.overlaps:
        yield ""
        yield from overlap_lines(report.overlaps, paint)
    elif len(good) > 1:
        yield ""
        yield "overlap: none, no two independent branches changed the same file"


def _next(report: RunReport, closing: Closing) -> Iterator[str]:
    """Yield the one command to type next, for the folder where it works."""
    command = _next_command(report, closing)
    if command is None:
        return
    if closing.folder.resolve() != Path.cwd():
        yield f"cd {escape(shlex.quote(str(closing.folder)))}"
    yield command


def _next_command(report: RunReport, closing: Closing) -> str | None:
    """Choose the command that continues the work: review it if that was advised, merge it, or ask why it failed."""
    if report.merge is not None:
        return next_after_merge(report.merge, closing.program)
    workers = report.workers
    good = _mergeable(report)
    if not good:
        return _look_into(workers, closing.program)
    first = escape(good[0].session)
    if len(good) == 1 and (_is_held(good[0]) or good[0].instructions):
        return f"{closing.program} diff {first}"
    if not closing.can_merge:
        return f"{closing.program} diff {first} | git apply"
    if len(good) == 1:
        return f"git merge {escape(good[0].branch or '')}"
    return f"{closing.program} merge {escape(report.run)} --preview"


def _mergeable(report: RunReport) -> list[WorkerResult]:
    """Return the successful workers with work of their own; of a step with `select`, only the selected one."""
    return [
        worker
        for step in report.steps
        for worker in step.worker_results
        if worker.branch and worker.status.is_good and step.selected in (None, worker.index)
    ]


def _look_into(workers: Sequence[WorkerResult], program: str) -> str | None:
    """Name the most informative log: of a failed session rather than a stopped one."""
    talkers = sorted((worker for worker in workers if worker.attempts), key=_by_interest)
    return f"{program} logs {escape(talkers[0].session)}" if talkers else None


def _by_interest(worker: WorkerResult) -> int:
    return 1 + (worker.status is Status.CANCELLED) if not worker.status.is_good else 3


def _is_held(worker: WorkerResult) -> bool:
    return bool(worker.executable or worker.secrets)
