"""`shoal replay`: run a recorded run again, offline, with the answers that its models gave then."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.follow import follow_run, make_request
from shoal.cli.options import HERE, Repo, Run
from shoal.cli.output import escape
from shoal.cli.overrides import RunOverrides
from shoal.cli.planning import RequestedWork, make_plan
from shoal.cli.repository import find_place
from shoal.cli.run import EventLines, Json, assert_one_output, choose_display
from shoal.errors import ExitCode
from shoal.runs.replay import compare_runs, find_recorded, find_replay, name_replay, replay_environ

With = Annotated[
    Path | None,
    typer.Option("--with", metavar="FILE", help="Replay with this file; the first request that differs is named."),
]


def command(
    run: Run = None, file: With = None, json: Json = False, events: EventLines = False, repo: Repo = HERE
) -> int:
    """Run a recorded run again, without a key or a network.

    It starts from the same commit, and exits with 1 if the requests or the files of an agent differ.
    """
    assert_one_output(json=json, events=events, detach=False)
    place = asyncio.run(find_place(repo))
    before = find_recorded(place.paths, place.state(), run)
    environ = replay_environ(os.environ)
    if file is None:
        plan = find_replay(place.paths, before, environ, repo)
    else:
        plan = make_plan(RequestedWork(repo, str(file)), RunOverrides(), environ)
    request = replace(
        make_request(plan, repo, before.base, approve_all=True),
        environ=environ,
        run=name_replay(before),
        replay=before.run,
    )
    code = asyncio.run(follow_run(plan, request, choose_display(plan, json=json, events=events)))
    after = place.state().runs.get(request.run or "")
    if after is None:  # it never began
        return code
    compared = asyncio.run(compare_runs(place.repository, before, after))
    for line in compared.lines:
        output.print_err(escape(line))
    return ExitCode.FAILED if compared.differences or compared.divergences else ExitCode.SUCCESS
