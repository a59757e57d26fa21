"""A run as Markdown for a comment on a pull request.

Agents' words appear only in code spans and fenced blocks, where no host finds markup, mentions, references or
links.
"""

import re
from collections.abc import Iterable, Iterator

from shoal.cli.output import escape, flat
from shoal.cli.render.columns import beginning, count, seconds
from shoal.cli.render.overlaps import verdict
from shoal.cli.render.report import remarks, step_remarks, summary, usage_text
from shoal.model.results import RunReport, WorkerResult
from shoal.model.status import Status

MAX_ROWS = 100
MAX_ITEMS = 20
MAX_LINES = 8
LINE_CHARS = 160
NAME_CHARS = 60
TICKS = re.compile("`+")
SIGNS = {
    Status.SUCCEEDED: "✅",
    Status.NO_CHANGES: "✅",
    Status.DEGRADED: "⚠️",
    Status.SKIPPED: "⏭️",
    Status.PENDING: "⏳",
    Status.RUNNING: "⏳",
    Status.PAUSED: "⏳",
}


def markdown(report: RunReport) -> str:
    """Write the whole comment; its size is limited, so that hosts accept it."""
    sections = (_head(report), _table(report), _failures(report), _about(report))
    return "\n".join(line for section in sections for line in section).rstrip() + "\n"


def code(text: str, most: int = LINE_CHARS) -> str:
    """Put untrusted text into a code span, on one line."""
    shown = beginning(flat(text), most)
    if not shown:
        return ""
    fence = "`" * (_longest_ticks(shown) + 1)
    return f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown}{fence}"


def cell(text: str) -> str:
    """Put untrusted text into a table: even in a code span, a bar would end its cell."""
    return code(text.replace("|", "¦"), NAME_CHARS)


def block(text: str) -> Iterator[str]:
    """Put some lines of untrusted text into a fenced block."""
    lines = [beginning(escape(line), LINE_CHARS) for line in text.splitlines()[:MAX_LINES]]
    fence = "`" * max(3, _longest_ticks("\n".join(lines)) + 1)
    yield f"{fence}text"
    yield from lines
    if len(text.splitlines()) > MAX_LINES:
        yield "…"
    yield fence


def _plain(text: str, _colour: str) -> str:
    return text


def _longest_ticks(text: str) -> int:
    return max(map(len, TICKS.findall(text)), default=0)


def _head(report: RunReport) -> Iterator[str]:
    spent = f" · {text}" if (text := usage_text(report.usage)) else ""
    yield f"### {SIGNS.get(report.status, '❌')} Shoal run {code(report.run, NAME_CHARS)}: {report.status.value}"
    yield ""
    yield f"{summary(report)}{spent}"
    yield ""
    if report.error is not None:
        yield from (*block(report.error), "")


def _table(report: RunReport) -> Iterator[str]:
    workers = report.workers
    if not workers:
        return
    yield "| session | status | time | files | cost | branch |"
    yield "|---|---|---:|---:|---:|---|"
    yield from map(_row, workers[:MAX_ROWS])
    yield ""
    if len(workers) > MAX_ROWS:
        yield from (f"… and {count(len(workers) - MAX_ROWS, 'more agent')}", "")


def _row(worker: WorkerResult) -> str:
    cost = worker.usage.get("cost_usd")
    cells = (
        cell(worker.session),
        f"{SIGNS.get(worker.status, '❌')} {worker.status_text}",
        seconds(worker.duration_seconds) if worker.duration_seconds else "-",
        str(worker.files_changed) if worker.branch else "-",
        "-" if cost is None else f"${cost:.4f}",
        cell(worker.branch or "") or "-",
    )
    return f"| {' | '.join(cells)} |"


def _failures(report: RunReport) -> Iterator[str]:
    failures = [worker for worker in report.workers if worker.error and not worker.status.is_good]
    for worker in failures[:MAX_ITEMS]:
        yield from (f"{code(worker.session, NAME_CHARS)} {worker.status.value}:", "", *block(worker.error or ""), "")
    if len(failures) > MAX_ITEMS:
        yield from (f"… and {count(len(failures) - MAX_ITEMS, 'more failure')}", "")


def _about(report: RunReport) -> Iterator[str]:
    sections = {
        "Steps": (f"{step.step}: {line}" for step in report.steps for line in step_remarks(step)),
        "Agents": (
            f"{worker.session}: {line}" for worker in report.workers for line in remarks(worker, with_usage=False)
        ),
        "Overlaps": (
            f"{overlap.one} and {overlap.other}: {verdict(overlap, _plain)}"
            for overlap in report.overlaps
            if overlap.step is None  # otherwise they are alternatives
        ),
        "Notes": report.notes,
    }
    for title, lines in sections.items():
        yield from _section(title, list(lines))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    items = [item for line in lines if (item := code(line))]
    if items:
        yield from (f"**{title}**", "", *(f"- {item}" for item in items[:MAX_ITEMS]))
        yield from (f"- … and {len(items) - MAX_ITEMS} more", "") if len(items) > MAX_ITEMS else ("",)
