"""`shoal retry`: do the failed work of a run again."""

import asyncio
import os
from typing import Annotated

import typer

from shoal.cli.options import HERE, Repo, Run
from shoal.cli.repository import find_place
from shoal.cli.resume import Fresh, With, follow_resumed, plan_of
from shoal.cli.run import EventLines, Json, Yes
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
    repo: Repo = HERE,
) -> int:
    """Start the failed agents of a run again."""
    if what is not None and start is not None:
        raise BadInput("both a failed step and --from; choose one")
    place = asyncio.run(find_place(repo))
    found = find_run(place.state(), run)
    changed = None if file is None else plan_of(file, repo)
    resumable = find_resumable(place.paths, found, os.environ, repo, changed)
    discard = (
        discard_failed(found, resumable.plan, what) if start is None else discard_from(found, resumable.plan, start)
    )
    return follow_resumed(with_discarded(resumable, discard, is_fresh=fresh), yes=yes, json=json, events=events)
