"""A run as one self-contained HTML page: no script, no request, and agents' words only as escaped text."""

import html
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal import __version__
from shoal.cli.output import escape
from shoal.cli.render.columns import count, seconds, some, tone
from shoal.cli.render.overlaps import find_shared_files
from shoal.cli.render.patch import PatchLine, split_patch
from shoal.cli.render.report import remarks, setting_lines, step_remarks, summary
from shoal.cli.render.resource_plots import cpu_text, disk_text, memory_text, plot_svg
from shoal.cli.render.timeline import LEGEND, MAX_LANES, timeline_svg
from shoal.model.results import RunReport, Usage, WorkerResult
from shoal.store.reader import SampleAt
from shoal.store.timeline import Lane, Point, cpu_points, disk_points, memory_points

MAX_AGENTS = 1000
MAX_FILES = 100
MAX_NAMES = 8
MAX_REASON_CHARS = 4000
MAX_LINE_CHARS = 1000

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1d2127;--dim:#5a6370;--line:#d9dde3;--soft:#f4f6f8;--good:#116d35;
--bad:#b3261e;--warn:#8a5300;--mark:#0a58b8;--idle:#c3c9d1}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7eb;--dim:#9aa4b1;--line:#343a42;--soft:#1d2126;
--good:#5fce86;--bad:#ff8a80;--warn:#f0b35a;--mark:#79b4ff;--idle:#4a525c}}
body{margin:0 auto;padding:1.5rem;max-width:76rem;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
code,pre,.mono{font:13px/1.45 ui-monospace,monospace}
table{border-collapse:collapse;width:100%}.wide{overflow-x:auto}
th,td{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:600}td.number,th.number{text-align:right}
td.number,th,td[class],tfoot td{white-space:nowrap}
pre{background:var(--soft);padding:.7rem;margin:.3rem 0;overflow-x:auto;white-space:pre;border-radius:4px}
pre.wrap{white-space:pre-wrap}summary{cursor:pointer;padding:.2rem 0}ul{margin:.3rem 0;padding-left:1.2rem}
.dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.mark{color:var(--mark)}
.bold{font-weight:600}td:first-child{min-width:14rem}
svg.bar{min-width:0;margin-top:.7rem}svg .good{fill:var(--good)}svg .rest{fill:var(--idle)}
pre .good,pre .bad{display:inline-block;min-width:100%}
pre .good{background:color-mix(in srgb,var(--good) 13%,transparent)}
pre .bad{background:color-mix(in srgb,var(--bad) 12%,transparent)}
svg{width:100%;min-width:40rem;height:auto;font:11px system-ui,sans-serif}
svg text{fill:var(--fg)}svg .axis{fill:var(--dim)}svg .grid{stroke:var(--line)}
.queue{fill:var(--line)}.setup{fill:var(--idle)}.run{fill:var(--mark);opacity:.75}.wait{fill:var(--warn)}
.seal,.check{fill:var(--good);opacity:.6}.call{fill:var(--fg);opacity:.45}svg .bad{fill:var(--bad)}
svg.plot{display:block;width:220px;min-width:0;height:40px}
svg.plot polyline{fill:none;stroke:var(--mark);stroke-width:1.5}svg.plot polygon{fill:var(--mark);opacity:.15}
.key{display:inline-block;margin-right:1rem}.key svg{width:10px;min-width:0;height:10px;margin-right:.3rem}
"""
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDiff:
    """The part of a session's changes that is shown."""

    patch: bytes = b""
    is_cut: bool = False
    omission: str = ""
    """Why nothing is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """The content of a page; *diffs* and *samples* are by session."""

    report: RunReport
    started_at: float
    lanes: Sequence[Lane] = ()
    diffs: Mapping[str, AgentDiff] = field(default_factory=dict)
    samples: Mapping[str, Sequence[SampleAt]] = field(default_factory=dict)
    """What sessions used of the machine over time."""


def page(content: PageContent) -> str:
    """Write the whole page."""
    report = content.report
    body = (*_head(content), *_agents(report), *_timeline(content), *_resources(content))
    rest = (*_steps(report), *_overlaps(report), *_notes(report), *_diffs(content.diffs), _foot())
    return "\n".join((*body, *rest, "</body></html>", ""))


def safe(text: str) -> str:
    """Escape text so that a page shows it literally, including invisible characters."""
    return html.escape(escape(text, keep="\n\t"))


def _head(content: PageContent) -> Iterator[str]:
    report = content.report
    yield f"{HEAD}\n<title>{safe(report.run)} · {report.status.value}</title>\n<style>{STYLE}</style></head><body>"
    status = f'<span class="{tone(report.status)}">{report.status.value}</span>'
    yield f"<header><h1>{safe(report.run)} {status}</h1>"
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(content.started_at))
    yield f'<p>{safe(summary(report))} <span class="dim">· started {when}</span></p>'
    yield from _shares(report)
    yield "</header><main>"
    if report.error is not None:
        yield f'<pre class="wrap bad">{safe(report.error[:MAX_REASON_CHARS])}</pre>'


def _shares(report: RunReport) -> Iterator[str]:
    """Draw how many agents succeeded, failed and did neither, as parts of a bar."""
    tones = Counter(tone(worker.status) for worker in report.workers)
    good, bad = tones["good"], tones["bad"]
    left = 0.0
    yield '<svg class="bar" viewBox="0 0 1000 6">'
    for kind, number in (("good", good), ("bad", bad), ("rest", tones.total() - good - bad)):
        width = 1000 * number / max(1, tones.total())
        if number:
            yield f'<rect class="{kind}" x="{left:.1f}" y="0" width="{max(1.0, width - 2):.1f}" height="6"/>'
        left += width
    yield "</svg>"


def _agents(report: RunReport) -> Iterator[str]:
    workers = [(step.step, worker) for step in report.steps for worker in step.worker_results]
    yield "<h2>Agents</h2>"
    if not workers:
        yield "<p>No agent was started.</p>"
        return
    yield '<div class="wide"><table><thead><tr><th>session</th><th>status</th><th class="number">time</th>'
    yield '<th class="number">files</th><th class="number">tokens in</th><th class="number">out</th>'
    yield '<th class="number">cost</th><th class="number">memory</th><th class="number">CPU</th><th>branch</th></tr>'
    yield "</thead><tbody>"
    for _, worker in workers[:MAX_AGENTS]:
        yield from _row(worker)
    yield f"</tbody><tfoot><tr><th>all attempts</th><td></td>{_cell('')}{_cell('')}{_spending(report.usage)}"
    yield f"{_cell('')}{_cell('')}<td></td></tr></tfoot></table></div>"
    if len(workers) > MAX_AGENTS:
        yield f"<p>… and {len(workers) - MAX_AGENTS} more</p>"


def _row(worker: WorkerResult) -> Iterator[str]:
    task = f'<br><span class="dim">{safe(worker.prompt)}</span>' if worker.prompt else ""
    took = seconds(worker.duration_seconds) if worker.duration_seconds else "-"
    memory, cpu = worker.resources.get("memory_peak_mb"), worker.resources.get("cpu_seconds")
    yield f'<tr><td><span class="mono">{safe(worker.session)}</span>{task}{_details(worker)}</td>'
    yield f'<td class="{tone(worker.status)}">{worker.status_text}</td>{_cell(took)}'
    yield f"{_cell(str(worker.files_changed) if worker.branch else '-')}{_spending(worker.usage)}"
    yield _cell("-" if memory is None else f"{memory:,.0f} MB") + _cell("-" if cpu is None else f"{cpu:,.1f} s")
    yield f'<td class="mono">{safe(worker.branch or "-")}</td></tr>'


def _details(worker: WorkerResult) -> str:
    """Say why a worker failed, and what a person should know of its work."""
    error = worker.error or ""
    reason = f'<pre class="wrap">{safe(error[:MAX_REASON_CHARS])}</pre>' if error else ""
    return reason + _list(remarks(worker, with_usage=False))


def _spending(usage: Usage) -> str:
    read, written, cost = usage.get("input_tokens"), usage.get("output_tokens"), usage.get("cost_usd")
    tokens = (_cell("-" if number is None else f"{number:,.0f}") for number in (read, written))
    return "".join(tokens) + _cell("-" if cost is None else f"${cost:.4f}")


def _cell(text: str) -> str:
    return f'<td class="number">{safe(text)}</td>'


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{safe(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _timeline(content: PageContent) -> Iterator[str]:
    if not content.lanes:
        return
    statuses = {worker.session: worker.status.value for worker in content.report.workers}
    keys = "".join(
        f'<span class="key"><svg viewBox="0 0 10 10"><rect class="{kind}" width="10" height="10"/></svg>{name}</span>'
        for kind, name in LEGEND
    )
    yield f'<h2>Timeline</h2><p class="dim">{keys}</p><div class="wide">'
    yield from timeline_svg(content.lanes, statuses, content.started_at)
    yield "</div>"
    if len(content.lanes) > MAX_LANES:
        yield f"<p>… and {len(content.lanes) - MAX_LANES} more sessions</p>"


def _resources(content: PageContent) -> Iterator[str]:
    """Plot the memory, CPU and disk use of sessions that were long enough for samples."""
    workers = [worker for worker in content.report.workers if worker.resources]
    if not workers:
        return
    yield '<h2>Resources</h2><div class="wide"><table><thead><tr><th>session</th><th>memory</th><th>CPU</th>'
    yield "<th>disk</th></tr></thead><tbody>"
    for worker in workers[:MAX_LANES]:
        samples = content.samples.get(worker.session, ())
        yield f'<tr><td class="mono">{safe(worker.session)}</td>'
        yield from _plot(memory_points(samples), "MB", memory_text(worker.resources))
        yield from _plot(cpu_points(samples), "% of a core", cpu_text(worker.resources))
        yield from _plot(disk_points(samples), "MB", disk_text(worker.resources))
        yield "</tr>"
    yield "</tbody></table></div>"
    if len(workers) > MAX_LANES:
        yield f"<p>… and {len(workers) - MAX_LANES} more</p>"


def _plot(points: Sequence[Point], unit: str, text: str) -> Iterator[str]:
    yield f"<td>{safe(text)}"
    yield from plot_svg(points, unit)
    yield "</td>"


def _steps(report: RunReport) -> Iterator[str]:
    lines = [(step, list(step_remarks(step))) for step in report.steps]
    shown = [f"{step.step}: {step.status.value}{'; ' if about else ''}{'; '.join(about)}" for step, about in lines]
    if shown:
        yield f"<h2>Steps</h2>{_list(shown)}"


def _overlaps(report: RunReport) -> Iterator[str]:
    shared = find_shared_files(
        [overlap for overlap in report.overlaps if overlap.step is None]
    )  # the others: alternatives
    if not shared:
        return
    yield f"<h2>Overlaps</h2><p>{count(len(shared), 'file')} changed by more than one agent.</p>"
    yield '<div class="wide"><table><thead><tr><th>file</th><th></th><th class="number">agents</th><th>who</th></tr>'
    yield "</thead><tbody>"
    for file in shared[:MAX_FILES]:
        verdict = '<td class="bad">conflict</td>' if file.is_in_conflict else '<td class="dim">merges by itself</td>'
        yield f'<tr><td class="mono">{safe(file.path)}</td>{verdict}{_cell(str(len(file.sessions)))}'
        yield f"<td>{safe(some(file.sessions, MAX_NAMES))}</td></tr>"
    yield "</tbody></table></div>"
    if len(shared) > MAX_FILES:
        yield f"<p>… and {count(len(shared) - MAX_FILES, 'more file')}</p>"


def _notes(report: RunReport) -> Iterator[str]:
    yield f"<h2>About this run</h2>{_list(setting_lines(report))}"
    if report.merge is not None:
        merged = [f"{result.session}: {result.status.value}" for result in report.merge.results]
        yield f"<h2>Merge into {safe(report.merge.branch)}</h2>{_list(merged)}"


def _diffs(diffs: Mapping[str, AgentDiff]) -> Iterator[str]:
    if diffs:
        yield "<h2>Changes</h2>"
    for session, diff in diffs.items():
        name = f'<span class="mono">{safe(session)}</span>'
        if diff.omission:
            yield f'<p>{name}: <span class="dim">{safe(diff.omission)}</span></p>'
            continue
        lines = list(split_patch(diff.patch))
        yield f"<details><summary>{name} {_size(lines)}</summary><pre>{_patch(lines)}</pre>"
        cut = f"The rest is not shown; `shoal diff {session}` prints it."
        yield f"<p>{safe(cut)}</p></details>" if diff.is_cut else "</details>"


def _size(lines: Sequence[PatchLine]) -> str:
    added, removed = (sum(line.colour == colour for line in lines) for colour in ("good", "bad"))
    return f'<span class="good">+{added:,}</span> <span class="bad">−{removed:,}</span>'


def _patch(lines: Sequence[PatchLine]) -> str:
    return "\n".join(
        f'<span class="{line.colour}">{shown}</span>' if line.colour else shown
        for line in lines
        for shown in (safe(line.text[:MAX_LINE_CHARS] + ("…" if len(line.text) > MAX_LINE_CHARS else "")),)
    )


def _foot() -> str:
    return f'</main><footer class="dim"><p>Written by Shoal {__version__}.</p></footer>'
