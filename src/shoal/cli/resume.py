"""`shoal resume`, `retry` and `rewind`: continue an interrupted run, or do some of its work again."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.detach import follow_apart, start_detached
from shoal.cli.follow import follow_run
from shoal.cli.options import HERE, Repo, Run, Session
from shoal.cli.output import escape
from shoal.cli.overrides import RunOverrides
from shoal.cli.planning import RequestedWork, make_plan
from shoal.cli.render.columns import ago, columns, count, join_cells, some
from shoal.cli.repository import find_place, run_of
from shoal.cli.run import Detach, EventLines, Json, MaxSpent, ReportStart, Yes, assert_one_output, choose_display
from shoal.errors import BadInput
from shoal.git.checkpoints import list_checkpoints
from shoal.git.diff import list_changed_paths
from shoal.model.budget import SpendingLimit
from shoal.model.events import SessionDiscarded
from shoal.model.plan import Plan
from shoal.model.repository import Repository
from shoal.runs.resume import (
    ResumableRun,
    discard_after,
    discard_failed,
    discard_from,
    find_resumable,
    is_complete,
    with_discarded,
)
from shoal.store.documents import text
from shoal.store.lookup import find_run, find_session
from shoal.store.run_state import RunState, SessionState

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

To = Annotated[int | None, typer.Option("--to", metavar="N", min=1, help="The number of the checkpoint.")]
ListOnly = Annotated[bool, typer.Option("--list", help="List the checkpoints of the session.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done again, and start nothing.")]


def resume_command(
    run: Run = None,
    fresh: Fresh = False,
    file: With = None,
    budget: MaxSpent = None,
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
    resumable = _with_budget(find_resumable(place.paths, found, os.environ, repo, changed), budget)
    if is_complete(found) and changed is None:
        output.print_out(f"{found.run} has ended ({found.status.value}); nothing was interrupted")
        return 0 if found.status.is_good else 1
    resumed = with_discarded(resumable, (), is_fresh=fresh)
    return follow_resumed(resumed, yes=yes, json=json, events=events, report_start=report_start)


def _with_budget(resumable: ResumableRun, budget: str | None) -> ResumableRun:
    """Return the run with another budget; what it has spent already counts."""
    if budget is None:
        return resumable
    return replace(resumable, plan=replace(resumable.plan, budget=SpendingLimit.parse(budget)))


def retry_command(
    run: Run = None,
    what: What = None,
    start: From = None,
    fresh: Fresh = False,
    file: With = None,
    budget: MaxSpent = None,
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
    resumable = _with_budget(find_resumable(place.paths, found, os.environ, repo, changed), budget)
    discard = (
        discard_failed(found, resumable.plan, what) if start is None else discard_from(found, resumable.plan, start)
    )
    resumed = with_discarded(resumable, discard, is_fresh=fresh)
    return follow_resumed(resumed, yes=yes, json=json, events=events, report_start=report_start)


def rewind_command(
    session: Session = None,
    to: To = None,
    list_: ListOnly = False,
    dry_run: DryRun = False,
    json: Json = False,
    events: EventLines = False,
    detach: Detach = False,
    report_start: ReportStart = None,
    repo: Repo = HERE,
) -> int:
    """Restart a session, and what depends on it, from a checkpoint.

    Its run must have ended. The branch of the first attempt stays.
    """
    if (to is None) != list_:
        raise BadInput("--to N starts from checkpoint N, and --list shows all; give one of them")
    assert_one_output(json=json, events=events, detach=detach)
    if detach and not dry_run and report_start is None:
        return start_detached(sys.argv[1:], b"", repo, json=json)
    place = asyncio.run(find_place(repo))
    state = place.state()
    chosen = find_session(state, session)
    if to is None:
        return asyncio.run(_list_checkpoints(place.repository, chosen, json=json))
    found = run_of(state, chosen)
    resumable = find_resumable(place.paths, found, os.environ, repo)
    discard = asyncio.run(discard_after(place.repository, found, chosen.session, to, resumable.plan))
    output.print_err("\n".join(_rewind_lines(found, discard)))
    if dry_run:
        return 0
    return follow_resumed(
        with_discarded(resumable, discard), yes=False, json=json, events=events, report_start=report_start
    )


async def _list_checkpoints(repository: Repository, session: SessionState, *, json: bool) -> int:
    found = await list_checkpoints(repository, session.session)
    counts = [len(await list_changed_paths(repository.git, session.base, checkpoint.commit)) for checkpoint in found]
    if json:
        fields = ("number", "commit", "ref", "at")
        rows = [{name: getattr(checkpoint, name) for name in fields} for checkpoint in found]
        document = [{**row, "files_changed": files} for row, files in zip(rows, counts, strict=True)]
        output.print_out(text({"session": session.session, "base": session.base, "checkpoints": document}))
        return 0
    if not found:
        output.print_err(f"shoal: {escape(session.session)} has no checkpoints")
        return 0
    lines = [
        (str(checkpoint.number), ago(time.time() - checkpoint.at), count(files, "file"), checkpoint.commit[:12])
        for checkpoint, files in zip(found, counts, strict=True)
    ]
    output.print_out("\n".join(map(join_cells, columns([("checkpoint", "kept", "changed", "commit"), *lines]))))
    return 0


def _rewind_lines(run: RunState, discard: Sequence[SessionDiscarded]) -> Iterator[str]:
    """Describe what starts again, from where, and that earlier work stays."""
    *others, chosen = discard
    yield f"shoal: {escape(chosen.session)} starts again from checkpoint {chosen.checkpoint} ({chosen.commit[:12]})"
    known = {name: session for step in run.steps.values() for name, session in step.sessions.items()}
    again = [known[entry.session] for entry in others if not known[entry.session].is_discarded]
    if again:
        yield f"shoal: also run again: {some([session.session for session in again])}"
    results = [session.result for session in (known[chosen.session], *again)]
    if branches := [result.branch for result in results if result is not None and result.branch is not None]:
        yield f"shoal: their work stays on {some(branches)}" if again else f"shoal: its work stays on {some(branches)}"


def plan_of(file: Path, folder: Path) -> Plan:
    """Make the plan of *file*, which takes the place of the recorded one."""
    return make_plan(RequestedWork(folder, str(file)), RunOverrides(), os.environ)


def follow_resumed(resumable: ResumableRun, *, yes: bool, json: bool, events: bool, report_start: int | None) -> int:
    """Continue *resumable* to its end and return the exit code."""
    request = replace(resumable.request, approve_all=yes or resumable.request.approve_all)
    plan, is_apart = resumable.plan, report_start is not None
    display = choose_display(plan, json=json and not is_apart, events=events, is_live=not is_apart)
    if is_apart:
        return asyncio.run(follow_apart(plan, request, display, None, report_start))
    return asyncio.run(follow_run(plan, request, display))
