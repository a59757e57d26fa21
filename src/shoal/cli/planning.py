"""From what was typed to a plan: a file, a pipeline by its name, or tasks for one agent."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import BadInput
from shoal.model.policy import Network
from shoal.model.task import AgentSpec, Plan, Step
from shoal.pipeline.adhoc import DEFAULT_AT_ONCE, adhoc
from shoal.pipeline.duration import BadDuration, seconds

OWN_FILE = "shoal.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be done, as it was typed."""

    folder: Path
    target: str | None = None
    tasks: tuple[str, ...] = ()
    agent: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How it is to be done, where that was typed: it is nearer than anything in a file."""

    at_once: int | None = None
    sandbox: str | None = None
    isolation: str | None = None
    timeout: str | None = None
    network: str | None = None


def planned(work: Work, manner: Manner, environ: Mapping[str, str]) -> Plan:
    """Make the plan; everything that is wrong with what was typed is told here."""
    if manner.at_once is not None and manner.at_once < 1:
        raise BadInput(f"-j {manner.at_once}: at least 1 agent has to work at a time")
    timeout = None if manner.timeout is None else duration(manner.timeout)
    made = _adhoc(work, environ) if work.tasks or work.agent or work.command else _from_file(work, environ)
    network = None if manner.network is None else Network(manner.network)
    return replace(
        made,
        steps=tuple(_nearer(step, timeout, network) for step in made.steps),
        max_concurrent=manner.at_once or made.max_concurrent,
        sandbox=manner.sandbox or made.sandbox,
        isolation_strategy=manner.isolation or made.isolation_strategy,
    )


def duration(written: str) -> float:
    """Read `90`, `1.5`, `90s` or `10m`."""
    try:
        return seconds(float(written))
    except BadDuration:
        raise
    except ValueError:
        return seconds(written)


def _nearer(step: Step, timeout: float | None, network: Network | None) -> Step:
    task = step.task
    return replace(step, task=replace(task, timeout=timeout or task.timeout, network=network or task.network))


def _adhoc(work: Work, environ: Mapping[str, str]) -> Plan:
    if work.target is not None:
        raise BadInput(f"both {work.target!r} and tasks of your own; give a pipeline or `--task`, not both")
    if not work.tasks:
        raise BadInput("an agent without work; say what it is to do with `--task`")
    return adhoc(work.tasks, _agent(work, environ), max_concurrent=DEFAULT_AT_ONCE)


def _agent(work: Work, environ: Mapping[str, str]) -> AgentSpec:
    if work.command is not None:
        if work.agent is not None:
            raise BadInput("both `--agent` and `--command`; one of them does the work")
        return AgentSpec(name="command", adapter="command", command=_argv(work.command))
    if work.agent is None:
        raise BadInput(f"no agent; name one of {OWN_FILE} with `--agent`, or give a program with `--command`")
    own = work.folder / OWN_FILE
    if not own.is_file():
        where = f"there is no {OWN_FILE} in {work.folder.resolve()} that could say what it is"
        raise BadInput(f"no agent named {work.agent!r}: {where}; write one with `agents:`, or use `--command`")
    # Imported here and below: reading YAML takes as long to load as all the rest, and `--command` needs none of it.
    from shoal.pipeline.load import load
    from shoal.pipeline.plan import agent

    return agent(load(own), work.agent, environ=environ)


def _argv(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise BadInput(f"--command cannot be split into words: {error}; mind the quotes") from None
    if not words or not words[0]:
        raise BadInput("--command is empty; give a program and its arguments")
    return words


def _from_file(work: Work, environ: Mapping[str, str]) -> Plan:
    own = work.folder / OWN_FILE
    if work.target is not None and _is_file(work.target):
        return _read(Path(work.target), None, environ)
    if own.is_file():
        return _read(own, work.target, environ)
    if work.target is None:
        raise BadInput(f"nothing to run: give a file, or `--task` with `--command` or `--agent` (there is no {own})")
    raise BadInput(f"there is no file {work.target!r}, and no {own} with a pipeline of that name")


def _read(file: Path, pipeline: str | None, environ: Mapping[str, str]) -> Plan:
    from shoal.pipeline.load import load
    from shoal.pipeline.plan import plan

    return plan(load(file), pipeline, environ=environ)


def _is_file(target: str) -> bool:
    """Tell a file from the name of a pipeline: a folder of that name is no reason to refuse the pipeline."""
    return target.endswith((".yaml", ".yml")) or "/" in target or Path(target).is_file()
