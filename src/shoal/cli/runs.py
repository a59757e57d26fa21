"""`shoal runs`: the runs of this repository."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.output import Paint
from shoal.cli.render.columns import ago, beginning, columns, heading, join_cells, seconds, tone
from shoal.cli.repository import find_place
from shoal.store.documents import text
from shoal.store.fold import report
from shoal.store.state import RunState

LATEST = 20
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=0, help="List the latest N; 0 lists all.")]
NAME = 32  # so that a row fits 80 columns


def command(
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="The latest N; 0 lists all.")
    ] = LATEST,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """List the runs of this repository, the latest first."""
    known = asyncio.run(find_place(repo)).state().runs
    names = list(known)[::-1]
    # in a long history, only those that are listed are read
    runs = [known[name] for name in names[:limit]] if limit else list(known.values())[::-1]
    lines = list(run_lines(runs, time.time(), output.paint())) if runs else ["no runs yet; start one with `shoal run`"]
    if len(runs) < len(names):
        lines.append(f"{len(names) - len(runs)} older; `--limit 0` lists all")
    output.print_out(text([run_row(run) for run in runs]) if json else "\n".join(lines))
    return 0


def run_row(run: RunState) -> dict[str, object]:
    """Give one run as a row of the document."""
    good, total = _score(run)
    return {
        "run": run.run,
        "status": run.status.value,
        "success_count": good,
        "total_workers": total,
        "started_at": run.started_at,
        "duration_seconds": run.duration_seconds,
    }


def run_lines(runs: Sequence[RunState], now: float, paint: Paint) -> Iterator[str]:
    """Give the table of *runs*."""
    head, *rows = columns([("run", "status", "agents", "time", "started"), *(_cells(run, now) for run in runs)])
    yield heading(head, paint)
    for run, row in zip(runs, rows, strict=True):
        row[1] = paint(row[1], tone(run.status))
        yield join_cells(row)


def _cells(run: RunState, now: float) -> tuple[str, ...]:
    good, total = _score(run)
    took = run.duration_seconds if run.status.is_ended else max(0.0, now - run.started_at)
    time_ = seconds(took) if took else "-"
    return beginning(run.run, NAME), run.status.value, f"{good}/{total}", time_, ago(now - run.started_at)


def _score(run: RunState) -> tuple[int, int]:
    """Count the agents that did their work, and all of them."""
    workers = [worker for step in report(run).steps for worker in step.worker_results]
    return sum(worker.status.is_good for worker in workers), len(workers)
