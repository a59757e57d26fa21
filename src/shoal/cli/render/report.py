"""The report that stands at the end of a run: what came of it, where it is, and what to type next."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.cli.output import Paint, escape, flat
from shoal.cli.render.columns import SHOWN, beginning, columns, count, heading, join_cells, seconds, some, tone
from shoal.cli.render.merge import merge_lines
from shoal.cli.render.overlaps import overlap_table
from shoal.git.difference import overlaps
from shoal.model.contract import warnings
from shoal.model.results import RunReport, StepResult, Usage, WorkerResult
from shoal.model.status import Status

NOT_FOUND = 127
MOST_LINES = 8
UNSEEN = (
    "agents see the system's programs and the first word of their command, nothing else of your PATH; "
    "`runtime.toolchains` shows them more"
)


def why(worker: WorkerResult) -> str | None:
    """Say it in words, escaped; `None` where there is nothing to say."""
    told = f"over_limit: {worker.limit}"
    if worker.status is Status.OVER_LIMIT and worker.error and worker.error.startswith(told):
        most = worker.error.removeprefix(told)
        return f"it passed its limit of {escape(worker.limit or '')}{escape(most)}, which `limits:` in shoal.yaml sets"
    if worker.error and worker.exit_code == NOT_FOUND and worker.status is Status.FAILED:
        return f"{flat(worker.error)} ({UNSEEN})"
    return _lines(worker.error) if worker.error else None


def _lines(error: str) -> str:
    """Give the first lines, each below the other."""
    shown, *rest = error.splitlines() or [""]
    more = [f"      {escape(line)}" for line in rest[:MOST_LINES]]
    return "\n".join([escape(shown), *more, *(["      …"] if len(rest) > MOST_LINES else [])])


def usage_text(usage: Usage) -> str:
    """Say tokens in and out, and the price where it is known; nothing where nothing was spent."""
    read, written = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    cost = usage.get("cost_usd")
    if not (read or written or cost):
        return ""
    price = f", ${cost:.4f}" if cost is not None else ""
    return f"{read:,.0f} tokens in, {written:,.0f} out{price}"


NAMED = 3
PROMPT = 80 - len("    task: ")
INDENT = "  "
VERIFYING = "__verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What a report says besides how the run ended: the files *changed* by branch, and what goes into commands."""

    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    program: str = "shoal"
    folder: Path = Path()
    can_merge: bool = True


def report_lines(report: RunReport, closing: Closing, paint: Paint) -> Iterator[str]:
    """Give the whole report."""
    yield ""
    yield headline(report, paint)
    yield from error_lines(report, paint)
    yield ""
    yield from worker_lines(report, paint, closing.changed)
    yield from step_lines(report, paint)
    yield from _overlap_lines(report, closing.changed, paint)
    yield from overlap_table(report.overlaps, paint)
    if report.merge is not None:
        yield ""
        yield from merge_lines(report.merge, closing.program, paint)
    yield ""
    yield from standing_lines(report)
    if advice := list(_next(report, closing)):
        yield ""
        yield paint("next:", "bold")
        yield from (f"{INDENT}{line}" for line in advice)


def headline(report: RunReport, paint: Paint) -> str:
    """Say in one line how the run ended; who only verified what the others did is no agent."""
    agents = (step for step in report.steps if not step.step.endswith(VERIFYING))
    workers = [one for step in agents for one in step.worker_results if one.status is not Status.SKIPPED]
    good = sum(worker.status.is_good for worker in workers)
    status = paint(report.status.value, tone(report.status))
    took = f" in {seconds(report.duration_seconds)}" if report.duration_seconds else ""
    return f"{paint(escape(report.run), 'bold')} {status}: {_score(good, len(workers), report.status)}{took}"


def error_lines(report: RunReport, paint: Paint) -> Iterator[str]:
    """Say why the run itself could not be finished."""
    if report.error is not None:
        first, *rest = report.error.splitlines() or [""]
        yield f"{paint('error:', 'bad')} {escape(first)}"
        yield from (f"{INDENT}{escape(line)}" for line in rest)


def worker_lines(report: RunReport, paint: Paint, changed: Mapping[str, Sequence[str]] | None = None) -> Iterator[str]:
    """Give the table of workers, each with what a person should know of it below."""
    workers = _workers(report)
    if not workers:
        return
    rows = [_row(worker, (changed or {}).get(worker.branch or "", ())) for worker in workers]
    head, *padded = columns([("session", "status", "time", "branch", "changes"), *rows])
    yield INDENT + heading(head, paint)
    told = ""
    for worker, row in zip(workers, padded, strict=True):
        row[1] = paint(row[1], tone(worker.status))
        yield INDENT + join_cells(row)
        if worker.prompt and worker.prompt != told:  # the workers of one step share it
            yield f"{INDENT}{INDENT}{paint(f'task: {beginning(worker.prompt, PROMPT)}', 'dim')}"
            told = worker.prompt
        yield from (f"{INDENT}{INDENT}{line}" for line in _remarks(worker))


def step_lines(report: RunReport, paint: Paint) -> Iterator[str]:
    """Say of each step what none of its workers can say: that it waited, was passed over, looped, or chose one."""
    for step in report.steps:
        lines = list(_step_remarks(step))
        if not step.status.is_ended:  # its turn has not come, or its workers say it
            continue
        if not step.worker_results or lines:
            status = paint(step.status.value, tone(step.status))
            yield f"{INDENT}step {escape(step.step)}: {status}{'; ' if lines else ''}{'; '.join(lines)}"


def _step_remarks(step: StepResult) -> Iterator[str]:
    if step.error and step.error not in {worker.error for worker in step.worker_results}:
        yield flat(step.error)
    if step.rounds > 1:
        yield f"done {step.rounds} times"
    yield from map(flat, step.notes)
    if step.selected is not None:
        yield f"worker {step.selected} was chosen"
    for place, row in enumerate(step.ranking, start=1):
        yield f"{place}. worker {row.index} ({', '.join(map(escape, row.reasons)) or 'no reason'})"
    if step.artifacts:
        yield f"left {', '.join(map(escape, step.artifacts))}"


def standing_lines(report: RunReport) -> Iterator[str]:
    """Say what the run stood on."""
    yield f"wall: {escape(report.wall)} · workspace: {escape(report.workspace)}"
    yield f"limits: {escape(report.limits) or 'not known'}"
    yield f"base: {escape(report.base)}"
    if told := usage_text(report.usage):
        yield f"spent: {told}"
    yield from (f"note: {flat(note)}" for note in report.notes)


def _workers(report: RunReport) -> list[WorkerResult]:
    return [worker for step in report.steps for worker in step.worker_results]


def _row(worker: WorkerResult, paths: Sequence[str]) -> tuple[str, ...]:
    is_timed = worker.status.is_ended or worker.duration_seconds > 0
    took = seconds(worker.duration_seconds) if is_timed and not worker.status.is_interrupted else "-"
    return (
        escape(worker.session),
        worker.status.value,
        took,
        escape(worker.branch or "-"),
        _changes(worker, paths),
    )


def _changes(worker: WorkerResult, paths: Sequence[str]) -> str:
    if worker.branch is None:
        return "-"
    number = count(worker.files_changed, "file")
    return f"{number}: {some(paths, NAMED)}" if paths else number


def _remarks(worker: WorkerResult) -> Iterator[str]:
    if reason := why(worker):
        yield f"why: {reason}"
    if worker.attempts > 1:
        yield f"this was attempt {worker.attempts}"
    if told := usage_text(worker.usage):
        yield f"spent: {told}"
    for one in warnings(worker.checks):
        yield escape(one.splitlines()[0])
    if worker.unkept:
        yield f"not kept: {some(worker.unkept)}"
    yield from map(escape, worker.notes)
    if worker.unconverted:
        yield f"kept as it lies there, not in the encoding that .gitattributes names: {some(worker.unconverted)}"
    if worker.executable:
        yield f"look before you merge, it changes what runs on your machine: {some(worker.executable)}"
    if worker.secrets:
        yield f"secrets of yours are on its branch, do not push it: {some(worker.secrets)}"
    if worker.instructions:
        yield f"it changes what agents read as instructions: {some(worker.instructions)}"
    if worker.set_back:
        switch = "`allow_executable_config: true` lets them"
        yield f"settings that earlier agents wrote did not count ({switch}): {some(worker.set_back)}"
    if worker.ignored:
        yield f"left out by the ignore rules: {count(worker.ignored, 'file')}"
    if worker.kept_refs:
        yield f"its other branches and stashes: {some(worker.kept_refs)}"
    if worker.raw:
        yield f"its raw files are still in {escape(worker.raw)}"


def _score(good: int, total: int, status: Status) -> str:
    """Count those that did their work, in the number and tense that fit."""
    if not total:
        return "no agent was started"
    their, have = ("its", "has") if total == 1 else ("their", "have")
    done = f"did {their} work" if status.is_ended else f"{have} done {their} work so far"
    return f"{good} of {count(total, 'agent')} {done}"


def _overlap_lines(report: RunReport, changed: Mapping[str, Sequence[str]], paint: Paint) -> Iterator[str]:
    """Name the files that more than one branch changed, of those that were told as overlapping and are to be merged."""
    good = {one.session: one.branch for one in _workers(report) if one.branch in changed and one.status.is_good}
    if len(good) < 2:
        return
    told = {good.get(name) for one in report.overlaps for name in (one.one, one.other)}
    shared = overlaps({branch: paths for branch, paths in changed.items() if branch in told})
    yield ""
    if not shared:
        yield "overlap: none, no two branches that stand apart changed the same file"
        return
    files = count(len(shared), "file")
    yield f"{paint('overlap:', 'warn')} {files} changed on more than one branch; merging may need you"
    for one in shared[:SHOWN]:
        yield f"{INDENT}{escape(one.path)}: {', '.join(map(escape, one.branches))}"
    if len(shared) > SHOWN:
        yield f"{INDENT}… and {len(shared) - SHOWN} more"


def _next(report: RunReport, closing: Closing) -> Iterator[str]:
    """Give the commands that a person would type now."""
    workers = _workers(report)
    if closing.folder.resolve() != Path.cwd():
        yield f"cd {escape(shlex.quote(str(closing.folder)))}"
    branched = sorted((one for one in workers if one.branch), key=lambda one: not one.status.is_good)
    for one in branched[:1]:
        yield f"{closing.program} diff {escape(one.session)}"
        if one.status.is_good and (closing.can_merge or not _is_held(one)):
            apply = f"{closing.program} diff {escape(one.session)} | git apply"
            yield from _merging(report, one, closing.program) if closing.can_merge else (apply,)
        yield f"{closing.program} open {escape(one.session)}"
    talkers = [one for one in workers if one.attempts and (not one.status.is_good or not branched)]
    talkers.sort(key=lambda one: one.status is Status.CANCELLED)  # who failed has more to tell than who was stopped
    for one in talkers[:1]:
        yield f"{closing.program} logs {escape(one.session)}"


def _is_held(worker: WorkerResult) -> bool:
    return bool(worker.executable or worker.secrets)


def _merging(report: RunReport, one: WorkerResult, program: str) -> Iterator[str]:
    """Say how the work is brought in: of several branches, or where some is held, by us; of one as everybody knows."""
    if (done := report.merge) is not None:
        if done.commit is not None and done.delivery is None:
            yield f"git merge {escape(done.branch)}"
        return  # what is held or delivered was said above, and git would bring in what is held
    branches = [worker for worker in _workers(report) if worker.branch and worker.status.is_good]
    if any(_is_held(worker) for worker in _workers(report)):
        yield f"{program} merge {escape(report.run)}"  # git would bring in what that holds, or work that builds on it
    elif len(branches) > 1:
        yield f"{program} merge {escape(report.run)} --preview"
    else:
        yield f"git merge {escape(one.branch or '')}"
