"""`shoal run`: a pipeline, or tasks for agents."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.cli import output
from shoal.cli import run as option
from shoal.cli.detach import follow_apart, start_detached
from shoal.cli.follow import follow_run, make_request
from shoal.cli.options import HERE, Repo
from shoal.cli.overrides import RunOverrides, duration
from shoal.cli.planning import STDIN, RequestedWork, make_plan, one_or_several, read_source
from shoal.cli.run_output import EventOutput, JsonOutput, LineOutput, LiveOutput, RunOutput
from shoal.errors import BadInput
from shoal.model.plan import Plan, walk_stages
from shoal.sandboxes.registry import DEFAULT, KINDS
from shoal.store import documents as document
from shoal.workspaces.registry import NAMES as WORKSPACE_NAMES

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="PIPELINE|FILE|TEXT", help="A file, a pipeline in shoal.yaml, or a task.", show_default=False
    ),
]
Name = Annotated[
    str | None,
    typer.Argument(metavar="PIPELINE", help="The pipeline to run, if the file has several.", show_default=False),
]
Task = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A task for an agent; repeatable.")]
Tasks = Annotated[
    str | None, typer.Option(metavar="FILE|-", help="Read tasks from a file or stdin, one per line, as text or JSON.")
]
Agent = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="An agent in shoal.yaml or a client like claude, for --task; repeatable."),
]
Agents = Annotated[str | None, typer.Option(metavar="A:3,B:2", help="Agents per task, for --task.")]
Program = Annotated[
    str | None,
    typer.Option(
        "--command", metavar="COMMAND", help="A program to use as the agent, for --task; it reads the prompt on stdin."
    ),
]
BestOf = Annotated[
    int | None,
    typer.Option("--best-of", metavar="N", help="Let N agents try each task, and keep the best; needs --select."),
]
Choose = Annotated[
    str | None,
    typer.Option(
        "--select",
        metavar="COMMAND",
        help="Keep the result on which this command passes, with the smallest change; for --best-of and --agents.",
    ),
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="The model of every agent.")]
Memory = Annotated[str | None, typer.Option(metavar="4G|512M", help="Memory limit for each agent; default: 1G.")]
Cpu = Annotated[
    str | None, typer.Option(metavar="CORES|50%", help="CPU limit for each agent; default: a fair share of all.")
]
Pattern = Annotated[
    str | None,
    typer.Option(
        metavar="settled|gather|race|quorum=N",
        help="When to stop: when all have ended, one fails, one succeeds, or N succeed.",
    ),
]
Retries = Annotated[int | None, typer.Option(metavar="N", help="How often to retry an agent that fails.")]
Base = Annotated[str | None, typer.Option(metavar="REF", help="The commit to start from; default: HEAD.")]
AtOnce = Annotated[
    int | None, typer.Option("-j", metavar="N", help="Agents at a time; default: the file's, or 10 (5 for --task).")
]
Sandbox = Annotated[
    str | None,
    typer.Option(metavar="|".join(KINDS), help=f"The sandbox of every agent; default: the file's, or {DEFAULT}."),
]
Isolation = Annotated[
    str | None,
    typer.Option(metavar="|".join(WORKSPACE_NAMES), help="The workspace of every agent; default: the file's, or auto."),
]
Timeout = Annotated[
    str | None,
    typer.Option(metavar="SECONDS|10m", help="Time limit for each agent; default: its own, usually an hour."),
]
Deadline = Annotated[
    str | None, typer.Option(metavar="SECONDS|10m", help="Time limit for the whole run, which then exits with 124.")
]
Net = Annotated[
    Literal["none", "gateway", "host"] | None,
    typer.Option(help="Network access; default: gateway for clients like claude, none for others."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="A host that agents on the gateway may reach; repeatable."),
]
Login = Annotated[
    list[str] | None,
    typer.Option(
        "--login", metavar="claude|codex", help="Use your login of this client, outside of sandboxes; repeatable."
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="TEXT|NAME=TEXT", help="A value for `{{ input }}` in a pipeline; repeatable."),
]
MaxSpent = Annotated[
    str | None,
    typer.Option("--budget", metavar="USD", help="What all agents together may spend on models, in dollars."),
]
Nodes = Annotated[
    str | None,
    typer.Option("--on", metavar="NODES", help="Run agents on these nodes, such as `me@build1:8,build2` or `pipe:4`."),
]
Record = Annotated[bool, typer.Option("--record", help="Record what agents and their models say, for `shoal replay`.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Approve every gate.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Print the plan without running it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and progress on stderr.")]
Detach = Annotated[bool, typer.Option("--detach", help="Run in the background, and return when the run has started.")]
OnHangup = Annotated[bool, typer.Option("--detach-on-hangup", help="Continue when the terminal is closed.")]
NoLive = Annotated[
    bool, typer.Option("--no-live", help="Print lines instead of drawing in place, as in CI and in a pipe.")
]
Ways = Annotated[
    list[str] | None,
    typer.Option(
        "--notify", metavar="bell|desktop|none", help="Notify you when the run ends or needs you; repeatable."
    ),
]
Hook = Annotated[
    str | None, typer.Option("--notify-command", metavar="COMMAND", help="Start this program for each notification.")
]
ReportStart = Annotated[int | None, typer.Option("--report-start", hidden=True)]
EventLines = Annotated[bool, typer.Option("--events", help="Print every event on stdout, one JSON object per line.")]


HEX = len("-3f9c1a")


def command(
    target: option.Target = None,
    pipeline: option.Name = None,
    task: option.Task = None,
    tasks: option.Tasks = None,
    agent: option.Agent = None,
    agents: option.Agents = None,
    program: option.Program = None,
    best_of: option.BestOf = None,
    select: option.Choose = None,
    model: option.Model = None,
    memory: option.Memory = None,
    cpu: option.Cpu = None,
    pattern: option.Pattern = None,
    retries: option.Retries = None,
    base: option.Base = None,
    at_once: option.AtOnce = None,
    sandbox: option.Sandbox = None,
    isolation: option.Isolation = None,
    timeout: option.Timeout = None,
    deadline: option.Deadline = None,
    network: option.Net = None,
    allow_host: option.AllowHost = None,
    login: option.Login = None,
    inputs: option.Input = None,
    budget: option.MaxSpent = None,
    nodes: option.Nodes = None,
    record: option.Record = False,
    yes: option.Yes = False,
    dry_run: option.Dry = False,
    json: option.Json = False,
    events: option.EventLines = False,
    detach: option.Detach = False,
    detach_on_hangup: option.OnHangup = False,
    no_live: option.NoLive = False,
    notify: option.Ways = None,
    notify_command: option.Hook = None,
    report_start: option.ReportStart = None,
    repo: Repo = HERE,
) -> int:
    """Run a pipeline or tasks; the work comes back as branches.

    Example: `shoal run --task "fix the login test" --command "my-agent --batch"`. Options override the file.
    """
    assert_one_output(json=json, events=events, detach=detach, dry_run=dry_run)
    if detach and report_start is None:
        return start_detached(sys.argv[1:], b"" if tasks != STDIN else read_source(STDIN, "stdin"), repo, json=json)
    chosen = one_or_several(agent or [], agents)
    work = RequestedWork(
        repo, target, task or (), tasks, *chosen, program, pattern, inputs or (), pipeline, best_of, select
    )
    how = (at_once, sandbox, isolation, timeout, network, retries)
    overrides = RunOverrides(*how, notify, notify_command, budget, allow_host, model, memory, cpu, login, nodes)
    limit, plan = _until(deadline), make_plan(work, overrides, os.environ)
    if dry_run:
        return _show_plan(plan, repo, json=json)
    face = choose_display(plan, json=json and not detach, events=events, is_live=not (no_live or detach))
    run = (plan, make_request(plan, repo, base, approve_all=yes, is_recorded=record), face, limit)
    return asyncio.run(follow_apart(*run, report_start) if detach or detach_on_hangup else follow_run(*run))


def _until(deadline: str | None) -> float | None:
    return None if deadline is None else duration("--deadline", deadline)


def assert_one_output(*, json: bool, events: bool, detach: bool, dry_run: bool = False) -> None:
    """Refuse options that print different things to the same stream."""
    if json and events:
        raise BadInput("both --json and --events; choose one")
    if detach and (events or dry_run):
        other = "--events" if events else "--dry-run"
        raise BadInput(f"both --detach and {other}, which prints here; leave one of them out")


def _show_plan(plan: Plan, folder: Path, *, json: bool) -> int:
    from shoal.cli.outline import outline_plan, plan_document
    from shoal.cli.render.plan import plan_lines
    from shoal.sessions.setup.project import dry_notes

    outline = outline_plan(replace(plan, notes=(*plan.notes, *dry_notes(folder, plan))))
    shown = document.text(plan_document(outline)) if json else "\n".join(plan_lines(outline, output.paint()))
    output.print_out(shown)
    return 0


def choose_display(plan: Plan, *, json: bool, events: bool, is_live: bool = True) -> RunOutput:
    """Choose what shows the progress of *plan*."""
    if events:
        return EventOutput()
    width = max(len(getattr(stage, "label", "") or stage.name) for stage in walk_stages(plan.steps)) + HEX
    if json:
        return JsonOutput(width=width)
    return LiveOutput(width=width) if is_live and output.is_live() else LineOutput(width=width)
