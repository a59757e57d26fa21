"""Turn command-line arguments into a plan: a file, a named pipeline, or tasks for agents."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.cli.notify import override_notify
from shoal.errors import BadInput, UnknownName
from shoal.model.agent import AgentSpec
from shoal.model.budget import SpendingLimit
from shoal.model.gateway import LOGINS, with_logins
from shoal.model.nodes import parse_nodes
from shoal.model.permissions import Permissions
from shoal.model.plan import PipelineGroup, Plan, Role, Stage, Step
from shoal.model.policy import NETWORKS, Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.retry import Retry
from shoal.model.status import Rule
from shoal.model.task import Task
from shoal.pipeline.adhoc import adhoc
from shoal.pipeline.keys.duration import BadDuration, seconds
from shoal.pipeline.names import OWN_FILE, own_file
from shoal.sandboxes.registry import KINDS
from shoal.workspaces.registry import NAMES as WORKSPACE_NAMES

MOST_BYTES = 16 * 2**20
STDIN = "-"


def read_tasks(source: str) -> tuple[Task, ...]:
    """Read the tasks of the file *source*, or of stdin for `-`; report errors with file, line and column."""
    name = "stdin" if source == STDIN else source
    content = read_source(source, name)
    lines = content.decode(errors="surrogateescape").removeprefix("\ufeff").split("\n")
    tasks = tuple(_task(line, f"{name}:{number}") for number, line in enumerate(lines, start=1) if line.strip())
    if not tasks:
        raise BadInput(f"{name}: contains no tasks; write one per line")
    return tasks


def read_source(source: str, name: str) -> bytes:
    """Read the bytes of *source*, a file or `-`, which messages call *name*."""
    try:
        if source == STDIN:
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot read tasks from {name!r} ({error.strerror}); check the path") from None
    if len(content) > MOST_BYTES:
        raise BadInput(f"{name}: more than {MOST_BYTES // 2**20} MiB of tasks; split it")
    return content


def _task(line: str, place: str) -> Task:
    column = len(line) - len(line.lstrip()) + 1
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{place}:{error.start + 1}: not UTF-8; save it as UTF-8") from None
    given = _object(line, place) if line.lstrip().startswith("{") else line.strip()
    try:
        return Task.of(given)
    except BadInput as error:
        raise BadInput(f"{place}:{column}: {error}") from None


def _object(line: str, place: str) -> dict[str, object]:
    try:
        read = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        column = error.colno if isinstance(error, json.JSONDecodeError) else 1
        what = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deep"
        raise BadInput(f"{place}:{column}: not a JSON object ({what}); write one object per line") from None
    assert isinstance(read, dict)  # noqa: S101 - it begins with a brace
    return read


MOST_OF_ONE = 100
_PART = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<text>.*)", re.DOTALL)
REMEDY = f"choose one in {OWN_FILE} with `--agent`, or give a program with `--command`"
REMEDY_WITHOUT_FILE = "give a program with `--command`, or a client with `--agent`: `shoal agents` lists them"


@dataclass(frozen=True, slots=True)
class RequestedWork:
    """What to run, as given on the command line."""

    folder: Path
    target: str | None = None
    tasks: Sequence[str] = ()
    source: str | None = None
    """A file of tasks, or `-`."""
    agent: str | None = None
    agents: str | None = None
    command: str | None = None
    pattern: str | None = None
    inputs: Sequence[str] = ()
    """Values of `{{ input }}`: one text, or parts like `name=text`."""
    pipeline: str | None = None
    """The pipeline to run, if the target is a file."""

    @property
    def is_adhoc(self) -> bool:
        """Say whether any option for tasks was given."""
        return any((self.tasks, self.source, self.agent, self.agents, self.command, self.pattern))


@dataclass(frozen=True, slots=True)
class RunOverrides:
    """Options of the command line that override the file."""

    at_once: int | None = None
    sandbox: str | None = None
    isolation: str | None = None
    timeout: str | None = None
    network: str | None = None
    retries: int | None = None
    notify: Sequence[str] | None = None
    notify_command: str | None = None
    budget: str | None = None
    allow_hosts: Sequence[str] | None = None
    logins: Sequence[str] | None = None
    nodes: str | None = None


def make_plan(work: RequestedWork, overrides: RunOverrides, environ: Mapping[str, str]) -> Plan:
    """Make the plan, or raise an error for a bad argument."""
    if overrides.at_once is not None and overrides.at_once < 1:
        raise BadInput(f"-j must be at least 1, not {overrides.at_once}")
    if overrides.retries is not None and overrides.retries < 0:
        raise BadInput(f"--retries must be at least 0, not {overrides.retries}")
    if overrides.sandbox is not None and overrides.sandbox not in KINDS:
        raise BadInput(f"--sandbox: {UnknownName('sandbox', overrides.sandbox, KINDS)}")
    if overrides.isolation is not None and overrides.isolation not in WORKSPACE_NAMES:
        raise BadInput(f"--isolation: {UnknownName('workspace', overrides.isolation, WORKSPACE_NAMES)}")
    for login in overrides.logins or ():
        if login not in LOGINS:
            raise BadInput(f"--login: {UnknownName('client with a login for the gateway', login, LOGINS)}")
    timeout = None if overrides.timeout is None else duration("--timeout", overrides.timeout)
    work = _with_text(work)
    made = _adhoc(work, environ) if work.is_adhoc else _from_file(work, environ)
    return replace(
        made,
        steps=tuple(_override(stage, overrides, timeout) for stage in made.steps),
        max_concurrent=overrides.at_once or made.max_concurrent,
        sandbox=overrides.sandbox or made.sandbox,
        isolation_strategy=overrides.isolation or made.isolation_strategy,
        nodes=made.nodes if overrides.nodes is None else parse_nodes(overrides.nodes),
        budget=made.budget if overrides.budget is None else SpendingLimit.parse(overrides.budget),
        notify=override_notify(made.notify, overrides.notify or (), overrides.notify_command),
        upstreams=with_logins(made.upstreams, overrides.logins or ()),
    )


def _with_text(work: RequestedWork) -> RequestedWork:
    """Treat a target of several words as a task, unless there is a file of that name."""
    target = work.target
    if target is None or len(target.split()) < 2 or Path(target).exists() or work.pipeline or work.inputs:
        return work
    return replace(work, target=None, tasks=(target, *work.tasks))


def one_or_several(names: Sequence[str], agents: str | None) -> tuple[str | None, str | None]:
    """Read `--agent`, which may be repeated: then each agent does every task, as with `--agents`."""
    if len(names) < 2:
        return (names[0] if names else None), agents
    if agents is not None:
        raise BadInput("give `--agent` or `--agents`, not both")
    return None, ",".join(names)


def duration(option: str, written: str) -> float:
    """Read `90`, `1.5`, `90s` or `10m`, as it was given to *option*."""
    try:
        return seconds(_number(written))
    except BadDuration as error:
        raise BadInput(f"{option}: {error}") from None


def _number(written: str) -> float | str:
    try:
        return float(written)
    except ValueError:
        return written


def _override(stage: Stage, overrides: RunOverrides, timeout: float | None) -> Stage:
    if isinstance(stage, PipelineGroup):
        return replace(stage, stages=tuple(_override(inner, overrides, timeout) for inner in stage.stages))
    if not isinstance(stage, Step):
        return stage
    task = stage.task
    network = None if overrides.network is None else Network(overrides.network)
    retry = task.retry if overrides.retries is None else Retry.of(overrides.retries)
    overridden = replace(task, timeout=timeout or task.timeout, network=network or task.network, retry=retry)
    overridden = _allow_hosts(overridden, overrides.allow_hosts or ())
    return replace(
        stage,
        task=overridden,
        sandbox=None if overrides.sandbox else stage.sandbox,
        isolation_strategy=None if overrides.isolation else stage.isolation_strategy,
    )


def _allow_hosts(task: ResolvedTask, hosts: Sequence[str]) -> ResolvedTask:
    """Let an agent on the gateway reach *hosts* besides those of the file; nothing holds others to any host."""
    if not hosts:
        return task
    from shoal.adapters.client import this_host
    from shoal.adapters.registry import adapter_of
    from shoal.sessions.policy import network_of

    if not NETWORKS[network_of(task, adapter_of(task.agent, this_host()))].has_listener:
        return task
    own = task.permissions or task.agent.permissions or Permissions()
    return replace(task, permissions=replace(own, hosts=(*(own.hosts or ()), *hosts)))


def _adhoc(work: RequestedWork, environ: Mapping[str, str]) -> Plan:
    if work.inputs:
        raise BadInput("--input needs a pipeline; write the text into the task itself")
    if work.target is not None:
        raise BadInput(_not_both(work))
    tasks = _tasks(work)
    workers = _workers(work)
    rule = None if work.pattern is None else Rule.of(work.pattern)
    # Imported here and below: importing the YAML reader takes as long as all the rest; `--command` needs none of it.
    from shoal.steps.resolve_task import AgentDirectory, TaskDefaults, assert_order, name_tasks, resolve_task

    known = name_tasks(tasks, (f"task-{number}" for number in range(1, len(tasks) + 1)))
    assert_order(known)
    default = _command(work) if work.command is not None else None
    remedy = REMEDY if own_file(work.folder).is_file() else REMEDY_WITHOUT_FILE
    directory = AgentDirectory(work.folder, environ, default, {}, remedy=remedy)
    roles = {
        (str(task.name), agent): resolve_task(replace(task, agent=agent) if agent else task, directory, TaskDefaults())
        for task in known
        for agent in workers
    }
    made = adhoc(known, {key: role.task for key, role in roles.items()}, workers, rule)
    made = replace(made, upstreams=directory.upstreams)
    return _with_contracts(made, list(roles.values()))


def _with_contracts(plan: Plan, roles: Sequence[Role]) -> Plan:
    """Give each step the artifacts and contracts of its task."""
    steps = [
        replace(step, artifacts=role.artifacts, contracts=role.contracts) if isinstance(step, Step) else step
        for step, role in zip(plan.steps, roles, strict=True)
    ]
    return replace(plan, steps=tuple(steps), reviewers={k: v for role in roles for k, v in role.reviewers.items()})


def _not_both(work: RequestedWork) -> str:
    """Name the option for tasks that was combined with a pipeline."""
    if work.tasks or work.source is not None:
        return f"both {work.target!r} and `--task`; give a pipeline or tasks, not both"
    given = {"--agent": work.agent, "--agents": work.agents, "--command": work.command, "--pattern": work.pattern}
    name = next(name for name, value in given.items() if value)
    return f"{name} works only with `--task`; in a pipeline such as {work.target!r}, set it in each step"


def _tasks(work: RequestedWork) -> list[Task]:
    tasks = [Task.of(text) for text in work.tasks]
    if work.source is not None:
        tasks += read_tasks(work.source)
    if not tasks:
        raise BadInput("no task given; use `--task TEXT` or `--tasks FILE`")
    return tasks


def _workers(work: RequestedWork) -> dict[str, int]:
    """Read how many of which agents do each task; an empty name is the agent of the task, or the only one."""
    if sum(choice is not None for choice in (work.agent, work.agents, work.command)) > 1:
        raise BadInput("give only one of `--agent`, `--agents` and `--command`")
    if work.agents is None:
        return {work.agent or "": 1}
    found: dict[str, int] = {}
    for part in work.agents.split(","):
        name, _, count = part.strip().partition(":")
        if not name or not (count or "1").isdigit() or not 1 <= int(count or "1") <= MOST_OF_ONE or name in found:
            raise BadInput(f"--agents {work.agents!r}: give names and numbers, like claude:3,codex:2")
        found[name] = int(count or "1")
    return found


def _command(work: RequestedWork) -> AgentSpec:
    return AgentSpec(name="command", adapter="command", command=_argv(work.command or ""))


def _argv(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise BadInput(f"--command cannot be parsed: {error}; check the quotes") from None
    if not words or not words[0]:
        raise BadInput("--command is empty; give a program and its arguments")
    return words


def _from_file(work: RequestedWork, environ: Mapping[str, str]) -> Plan:
    own = own_file(work.folder)
    given = _read_inputs(work.inputs)
    if work.target is not None and _is_file(work.target):
        return _read(Path(work.target), work.pipeline, environ, given)
    if work.pipeline is not None:
        raise BadInput(f"both {work.target!r} and {work.pipeline!r}; give a file and one of its pipelines, or one name")
    if own.is_file():
        return _read(own, work.target, environ, given)
    if work.target is None:
        raise BadInput(f"nothing to run: give a file, or `--task` with `--command` or `--agent` (there is no {own})")
    task = f"to run it as a task, use `--task {shlex.quote(work.target)}`"
    raise BadInput(f"there is no file {work.target!r} and no {own} with a pipeline of that name; {task}")


def _read(file: Path, pipeline: str | None, environ: Mapping[str, str], given: Mapping[str, str] | str | None) -> Plan:
    from shoal.pipeline.load import load
    from shoal.pipeline.plan import plan

    return plan(load(file), pipeline, environ=environ, given=given)


def _read_inputs(inputs: Sequence[str]) -> Mapping[str, str] | str | None:
    """Read `--input`: parts like `name=text`, or one text."""
    parts = [_PART.fullmatch(written) for written in inputs]
    if inputs and all(parts):
        return {part["name"]: part["text"] for part in parts if part}
    if len(inputs) > 1:
        raise BadInput(
            "several --input need names, like --input title=… --input body=…; only a single one can be plain text"
        )
    return inputs[0] if inputs else None


def _is_file(target: str) -> bool:
    """Say whether *target* is a file and not the name of a pipeline; a folder of that name does not matter."""
    return target.endswith((".yaml", ".yml")) or "/" in target or Path(target).is_file()
