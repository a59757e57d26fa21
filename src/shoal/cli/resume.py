"""`shoal resume` and `shoal retry`: continue an interrupted run, or do its failed work again."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.detach import follow_apart, start_detached
from shoal.cli.follow import follow_run
from shoal.cli.options import HERE, Repo, Run
from shoal.cli.planning import RunOverrides, Work, make_plan
from shoal.cli.repository import find_place
from shoal.cli.run import Detach, EventLines, Json, ReportStart, Yes, assert_one_output, choose_display
from shoal.errors import BadInput
from shoal.model.plan import Plan
from shoal.runs.resume import (
    ResumableRun,
    discard_failed,
    discard_from,
    find_resumable,
    is_complete,
    with_discarded,
)
from shoal.store.lookup import find_run

Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start interrupted agents from their base, without the files they left.")
]
With = Annotated[
    Path | None,
    typer.Option("--with", metavar="FILE", help="Continue with this file; its finished steps must be unchanged."),
]
What = Annotated[
    str | None, typer.Argument(metavar="STEP|SESSION", help="A failed step or session; default: all that failed.")
]
From = Annotated[
    str | None, typer.Option("--from", metavar="STEP", help="Run this step and everything that depends on it again.")
]


def resume_command(
    run: Run = None,
    fresh: Fresh = False,
    file: With = None,
    yes: Yes = False,
    json: Json = False,
    events: EventLines = False,
    detach: Detach = False,
    report_start: ReportStart = None,
    repo: Repo = HERE,
) -> int:
    """Continue an interrupted run; finished agents are kept.

    It uses the plan recorded at the start, so you can change or delete the file.
    """
    assert_one_output(json=json, events=events, detach=detach)
    if detach and report_start is None:
        return start_detached(sys.argv[1:], b"", repo, json=json)
    place = asyncio.run(find_place(repo))
    found = find_run(place.state(), run)
    changed = None if file is None else plan_of(file, repo)
    resumable = find_resumable(place.paths, found, os.environ, repo, changed)
    if is_complete(found) and changed is None:
        output.print_out(f"{found.run} has ended ({found.status.value}); nothing was interrupted")
        return 0 if found.status.is_good else 1
    resumed = with_discarded(resumable, (), is_fresh=fresh)
    return follow_resumed(resumed, yes=yes, json=json, events=events, report_start=report_start)


def retry_command(
    run: Run = None,
    what: What = None,
    start: From = None,
    fresh: Fresh = False,
    file: With = None,
    yes: Yes = False,
    json: Json = False,
    events: EventLines = False,
    detach: Detach = False,
    report_start: ReportStart = None,
    repo: Repo = HERE,
) -> int:
    """Start the failed agents of a run again."""
    if what is not None and start is not None:
        raise BadInput("both a failed step and --from; choose one")
    assert_one_output(json=json, events=events, detach=detach)
    if detach and report_start is None:
        return start_detached(sys.argv[1:], b"", repo, json=json)
    place = asyncio.run(find_place(repo))
    found = find_run(place.state(), run)
    changed = None if file is None else plan_of(file, repo)
    resumable = find_resumable(place.paths, found, os.environ, repo, changed)
    discard = (
        discard_failed(found, resumable.plan, what) if start is None else discard_from(found, resumable.plan, start)
    )
    resumed = with_discarded(resumable, discard, is_fresh=fresh)
    return follow_resumed(resumed, yes=yes, json=json, events=events, report_start=report_start)


def plan_of(file: Path, folder: Path) -> Plan:
    """Make the plan of *file*, which takes the place of the recorded one."""
    return make_plan(Work(folder, str(file)), RunOverrides(), os.environ)


def follow_resumed(resumable: ResumableRun, *, yes: bool, json: bool, events: bool, report_start: int | None) -> int:
    """Continue *resumable* to its end and return the exit code."""
    request = replace(resumable.request, approve_all=yes or resumable.request.approve_all)
    plan, is_apart = resumable.plan, report_start is not None
    display = choose_display(plan, json=json and not is_apart, events=events, is_live=not is_apart)
    if is_apart:
        return asyncio.run(follow_apart(plan, request, display, None, report_start))
    return asyncio.run(follow_run(plan, request, display))
