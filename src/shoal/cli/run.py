"""`shoal run`: a pipeline, or tasks for agents."""

import asyncio
import os

from shoal.cli import run_options as option
from shoal.cli.face import Document, Events, Face, Lines
from shoal.cli.following import asked, followed
from shoal.cli.options import HERE, Repo
from shoal.cli.planning import Manner, Work, duration, planned
from shoal.errors import BadInput
from shoal.model.assignment import Plan

HEX = len("-3f9c1a")


def command(
    target: option.Target = None,
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
    json: option.Json = False,
    events: option.EventLines = False,
    repo: Repo = HERE,
) -> int:
    """Run a pipeline or some tasks; the work comes back as branches.

    For instance: `shoal run --task "fix the login test" --command "my-agent --batch"`. Options override the file.
    """
    if json and events:
        raise BadInput("both --json and --events; choose one")
    work = Work(repo, target, tuple(task or ()), tasks, agent, agents, program, pattern)
    manner = Manner(at_once, sandbox, isolation, timeout, network, retries)
    until = None if deadline is None else duration(deadline)
    plan = planned(work, manner, os.environ)
    face = _face(plan, json=json, events=events)
    return asyncio.run(followed(plan, asked(plan, repo, base), face, until))


def _face(plan: Plan, *, json: bool, events: bool) -> Face:
    if events:
        return Events()
    width = max(len(step.name) for step in plan.steps) + HEX
    return Document(width=width) if json else Lines(width=width)
