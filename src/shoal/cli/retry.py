"""`shoal retry`: do the failed work of a run again."""

import asyncio
import os
import sys
from typing import Annotated

import typer

from shoal.cli.detach import start_detached
from shoal.cli.options import HERE, Repo, Run
from shoal.cli.repository import find_place
from shoal.cli.resume import Fresh, With, follow_resumed, plan_of
from shoal.cli.run import Detach, EventLines, Json, ReportStart, Yes, assert_one_output
from shoal.errors import BadInput
from shoal.runs.resume import discard_failed, discard_from, find_resumable, with_discarded
from shoal.store.lookup import find_run

What = Annotated[
    str | None, typer.Argument(metavar="STEP|SESSION", help="A failed step or session; default: all that failed.")
]
From = Annotated[
    str | None, typer.Option("--from", metavar="STEP", help="Run this step and everything that depends on it again.")
]


def command(
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
