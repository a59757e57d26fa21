"""`shoal resume`: continue a run that was interrupted or killed."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.follow import follow_run
from shoal.cli.options import HERE, Repo, Run
from shoal.cli.planning import RunOverrides, Work, make_plan
from shoal.cli.repository import find_place
from shoal.cli.run import EventLines, Json, Yes, choose_display
from shoal.errors import BadInput
from shoal.model.plan import Plan
from shoal.runs.resume import ResumableRun, find_resumable, is_complete, with_discarded
from shoal.store.lookup import find_run

Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start interrupted agents from their base, without the files they left.")
]
With = Annotated[
    Path | None,
    typer.Option("--with", metavar="FILE", help="Continue with this file; its finished steps must be unchanged."),
]


def command(
    run: Run = None,
    fresh: Fresh = False,
    file: With = None,
    yes: Yes = False,
    json: Json = False,
    events: EventLines = False,
    repo: Repo = HERE,
) -> int:
    """Continue an interrupted run; finished agents are kept.

    It uses the plan recorded at the start, so you can change or delete the file.
    """
    place = asyncio.run(find_place(repo))
    found = find_run(place.state(), run)
    changed = None if file is None else plan_of(file, repo)
    resumable = find_resumable(place.paths, found, os.environ, repo, changed)
    if is_complete(found) and changed is None:
        output.print_out(f"{found.run} has ended ({found.status.value}); nothing was interrupted")
        return 0 if found.status.is_good else 1
    return follow_resumed(with_discarded(resumable, (), is_fresh=fresh), yes=yes, json=json, events=events)


def plan_of(file: Path, folder: Path) -> Plan:
    """Make the plan of *file*, which takes the place of the recorded one."""
    return make_plan(Work(folder, str(file)), RunOverrides(), os.environ)


def follow_resumed(resumable: ResumableRun, *, yes: bool, json: bool, events: bool) -> int:
    """Continue *resumable* to its end and return the exit code."""
    if json and events:
        raise BadInput("both --json and --events; choose one")
    request = replace(resumable.request, approve_all=yes or resumable.request.approve_all)
    return asyncio.run(follow_run(resumable.plan, request, choose_display(resumable.plan, json=json, events=events)))
