"""`shoal run`: a pipeline, or tasks for one agent."""

import asyncio
import os
from typing import Annotated, Literal

import typer

from shoal.cli.face import Document, Events, Face, Lines
from shoal.cli.following import asked, followed
from shoal.cli.options import HERE, Repo
from shoal.cli.planning import Manner, Work, planned
from shoal.errors import BadInput
from shoal.model.task import Plan

HEX = len("-3f9c1a")


def command(
    target: Annotated[
        str | None,
        typer.Argument(metavar="PIPELINE|FILE", help="A file, or a pipeline of ./shoal.yaml.", show_default=False),
    ] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="What an agent is to do; repeatable.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="An agent of ./shoal.yaml, for --task.")] = None,
    program: Annotated[
        str | None,
        typer.Option(
            "--command", metavar="COMMAND", help="A program as the agent, for --task; the prompt is its stdin."
        ),
    ] = None,
    base: Annotated[str | None, typer.Option(metavar="REF", help="The commit to start from; else HEAD.")] = None,
    at_once: Annotated[
        int | None,
        typer.Option("-j", metavar="N", help="Agents at a time; 5 for --task, 10 for a file, unless it says."),
    ] = None,
    sandbox: Annotated[
        Literal["bubblewrap", "landlock", "none"] | None, typer.Option(help="The wall; else bubblewrap.")
    ] = None,
    isolation: Annotated[
        Literal["auto", "overlay", "worktree", "directory"] | None, typer.Option(help="The workspace; else auto.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="SECONDS|10m", help="Time for each agent; else no end.")
    ] = None,
    network: Annotated[Literal["none", "host"] | None, typer.Option(help="Their network; else none.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, progress on stderr.")] = False,
    events: Annotated[bool, typer.Option("--events", help="Every event on stdout, one JSON object per line.")] = False,
    repo: Repo = HERE,
) -> int:
    """Run a pipeline or some tasks; the work comes back as branches.

    For instance: `shoal run --task "fix the login test" --command "my-agent --batch"`. Options override the file.
    """
    if json and events:
        raise BadInput("both --json and --events; choose one")
    work = Work(folder=repo, target=target, tasks=tuple(task or ()), agent=agent, command=program)
    manner = Manner(at_once=at_once, sandbox=sandbox, isolation=isolation, timeout=timeout, network=network)
    plan = planned(work, manner, os.environ)
    face = _face(plan, json=json, events=events)
    return asyncio.run(followed(plan, asked(plan, repo, base), face))


def _face(plan: Plan, *, json: bool, events: bool) -> Face:
    if events:
        return Events()
    width = max(len(step.name) for step in plan.steps) + HEX
    return Document(width=width) if json else Lines(width=width)
