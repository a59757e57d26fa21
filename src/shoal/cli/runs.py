"""`shoal runs`: the runs of this repository, or of all repositories of this user."""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import GAP, ago, beginning, columns, heading, join_cells, seconds, tone
from shoal.cli.repository import find_place
from shoal.errors import ShoalError
from shoal.store.documents import text
from shoal.store.fold import report
from shoal.store.killed_runs import read_state
from shoal.store.known_repositories import list_repositories
from shoal.store.paths import StatePaths
from shoal.store.run_state import RunState

LATEST = 20
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=0, help="List the latest N; 0 lists all.")]
NONE_YET = "no runs yet; start one with `shoal run`"
All = Annotated[bool, typer.Option("--all", help="List the runs of all your repositories.")]
NAME = 32  # so that a row fits 80 columns


def command(
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="The latest N; 0 lists all.")
    ] = LATEST,
    all_repositories: All = False,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """List the runs of this repository, the latest first."""
    if all_repositories:
        return _list_all(limit, json=json)
    known = asyncio.run(find_place(repo)).state().runs
    names = list(known)[::-1]
    # in a long history, only the listed ones are read
    runs = [known[name] for name in names[:limit]] if limit else list(known.values())[::-1]
    lines = list(run_lines(runs, time.time(), output.paint())) if runs else [NONE_YET]
    if len(runs) < len(names):
        lines.append(f"{len(names) - len(runs)} older; `--limit 0` lists all")
    output.print_out(text([run_row(run) for run in runs]) if json else "\n".join(lines))
    return 0


def _list_all(limit: int, *, json: bool) -> int:
    """List the runs of all repositories, the latest first, with their folders."""
    found = [(place, run) for place in list_repositories(os.environ) for run in _read_latest(place, limit)]
    found.sort(key=lambda entry: entry[1].started_at, reverse=True)
    found = found[:limit] if limit else found
    rows = [run_row(run) | {"repository": str(place.root.parent)} for place, run in found]
    head, *lines = run_lines([run for _, run in found], time.time(), output.paint()) if found else [NONE_YET]
    places = [f"{line}{GAP}{escape(str(place.root.parent))}" for line, (place, _) in zip(lines, found, strict=True)]
    output.print_out(text(rows) if json else "\n".join([head, *places]))
    return 0


def _read_latest(place: StatePaths, limit: int) -> list[RunState]:
    """Read the latest runs of one repository; an unreadable one does not hide the others."""
    try:
        known = read_state(place).runs
        names = list(known)[::-1]
        return [known[name] for name in (names[:limit] if limit else names)]
    except (ShoalError, OSError) as error:
        output.print_err(f"shoal: {escape(str(place.root.parent))} cannot be read: {escape(str(error))}")
        return []


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
    """Count the agents that succeeded, and all of them."""
    workers = report(run).workers
    return sum(worker.status.is_good for worker in workers), len(workers)
