"""`shoal wait`: until a run has ended, with its exit code."""

import asyncio
import time
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo, Run
from shoal.cli.output import escape, program
from shoal.cli.overrides import duration
from shoal.cli.render.columns import seconds
from shoal.cli.render.report import error_lines, headline
from shoal.cli.repository import RepositoryState, find_place, is_dead
from shoal.cli.status import status_document
from shoal.errors import ExitCode
from shoal.model.results import exit_code
from shoal.store.documents import text
from shoal.store.fold import report
from shoal.store.following import is_owned, pause
from shoal.store.lookup import find_run

POLL_SECONDS = 0.2

Timeout = Annotated[
    str | None, typer.Option(metavar="SECONDS|10m", help="How long to wait at most; then it exits with 124.")
]


def command(run: Run = None, timeout: Timeout = None, json: Json = False, repo: Repo = HERE) -> int:
    """Wait until a run has ended; exit with its code."""
    limit = None if timeout is None else duration("--timeout", timeout)
    place = asyncio.run(find_place(repo))
    name = find_run(place.state(), run).run
    if not _wait_for_end(place, name, limit):
        output.print_err(f"shoal: {escape(name)} is still running after {seconds(limit or 0)}")
        return ExitCode.TIMED_OUT
    chosen = place.state().runs[name]
    ended = report(chosen)
    lines = (headline(ended, output.paint()), *error_lines(ended, output.paint()))
    output.print_out(text(status_document(chosen, ended)) if json else "\n".join(lines))
    if is_dead(place, name):
        output.print_err(f"shoal: {escape(name)} was killed; `{program()} clean` recovers its agents' work")
        return ExitCode.FAILED
    return exit_code(ended)


def _wait_for_end(place: RepositoryState, run: str, limit: float | None) -> bool:
    """Wait until nobody owns *run* any more: then its end is recorded, and all of its processes have ended."""
    end = None if limit is None else time.monotonic() + limit
    while is_owned(place.paths, run):
        left = POLL_SECONDS if end is None else end - time.monotonic()
        if left <= 0:
            return False
        pause(place.paths, min(POLL_SECONDS, left))
    return True
