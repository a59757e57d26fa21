"""`shoal run`: a pipeline, or tasks for agents."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from shoal.cli import document, output
from shoal.cli import run_options as option
from shoal.cli.face import Document, Events, Face, Lines
from shoal.cli.following import asked, followed
from shoal.cli.options import HERE, Repo
from shoal.cli.planning import Manner, Work, duration, planned
from shoal.errors import BadInput
from shoal.model.plan import Plan, everything

HEX = len("-3f9c1a")


def command(
    target: option.Target = None,
    pipeline: option.Name = None,
    task: option.Task = None,
    tasks: option.Tasks = None,
    agent: option.Agent = None,
    agents: option.Agents = None,
    program: option.Program = None,
    pattern: option.Pattern = None,
    retries: option.Retries = None,
    base: option.Base = None,
    at_once: option.AtOnce = None,
    sandbox: option.Wall = None,
    isolation: option.Isolation = None,
    timeout: option.Timeout = None,
    deadline: option.Deadline = None,
    network: option.Net = None,
    inputs: option.Input = None,
    yes: option.Yes = False,
    dry_run: option.Dry = False,
    json: option.Json = False,
    events: option.EventLines = False,
    repo: Repo = HERE,
) -> int:
    """Run a pipeline or some tasks; the work comes back as branches.

    For instance: `shoal run --task "fix the login test" --command "my-agent --batch"`. Options override the file.
    """
    if json and events:
        raise BadInput("both --json and --events; choose one")
    work = Work(repo, target, tuple(task or ()), tasks, agent, agents, program, pattern, tuple(inputs or ()), pipeline)
    manner = Manner(at_once, sandbox, isolation, timeout, network, retries)
    until = None if deadline is None else duration("--deadline", deadline)
    plan = planned(work, manner, os.environ)
    if dry_run:
        return _shown(plan, repo, json=json)
    face = _face(plan, json=json, events=events)
    return asyncio.run(followed(plan, asked(plan, repo, base, approve_all=yes), face, until))


def _shown(plan: Plan, folder: Path, *, json: bool) -> int:
    from shoal.cli.outline import outlined, plan_document
    from shoal.cli.render.plan import plan_lines
    from shoal.engine.setup_project import dry_notes

    outline = outlined(replace(plan, notes=(*plan.notes, *dry_notes(folder, plan))))
    shown = document.text(plan_document(outline)) if json else "\n".join(plan_lines(outline, output.paint()))
    output.say(shown)
    return 0


def _face(plan: Plan, *, json: bool, events: bool) -> Face:
    if events:
        return Events()
    width = max(len(stage.name) for stage in everything(plan.steps)) + HEX
    return Document(width=width) if json else Lines(width=width)
