"""Turn command-line arguments into a plan: a file, a named pipeline, or tasks for agents."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.cli.overrides import RunOverrides, override_plan
from shoal.errors import BadInput
from shoal.model.agent import AgentSpec
from shoal.model.plan import Plan, Role, Step
from shoal.model.status import Rule
from shoal.model.task import Task
from shoal.pipeline.adhoc import AdhocAgents, adhoc
from shoal.pipeline.names import OWN_FILE, own_file

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
    best_of: int | None = None
    """How many agents try each task."""
    select: str | None = None
    """The command that compares their results."""

    @property
    def is_adhoc(self) -> bool:
        """Say whether any option for tasks was given."""
        return any(
            (self.tasks, self.source, self.agent, self.agents, self.command, self.pattern, self.best_of, self.select)
        )


def make_plan(work: RequestedWork, overrides: RunOverrides, environ: Mapping[str, str]) -> Plan:
    """Make the plan, or raise an error for a bad argument."""
    overrides.assert_valid()
    work = _with_text(work)
    return override_plan(_adhoc(work, environ) if work.is_adhoc else _from_file(work, environ), overrides)


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


def _adhoc(work: RequestedWork, environ: Mapping[str, str]) -> Plan:
    if work.inputs:
        raise BadInput("--input needs a pipeline; write the text into the task itself")
    if work.target is not None:
        raise BadInput(_not_both(work))
    tasks = _tasks(work)
    workers = _workers(work)
    _assert_choice(work, workers)
    rule = None if work.pattern is None else Rule.of(work.pattern)
    # Imported here and below: importing the YAML reader takes as long as all the rest; `--command` needs none of it.
    from shoal.steps.resolve_task import AgentDirectory, TaskDefaults, assert_order, name_tasks, resolve_task

    known = name_tasks(tasks, (f"task-{number}" for number in range(1, len(tasks) + 1)))
    assert_order(known)
    default = _command(work) if work.command is not None else None
    remedy = REMEDY if own_file(work.folder).is_file() else REMEDY_WITHOUT_FILE
    directory = AgentDirectory(work.folder, environ, default, {}, remedy=remedy, takes_ready_client=True)
    roles = {
        (str(task.name), agent): resolve_task(replace(task, agent=agent) if agent else task, directory, TaskDefaults())
        for task in known
        for agent in workers
    }
    agents = AdhocAgents(
        workers=workers,
        assigned={key: role.task for key, role in roles.items()},
        unnamed={str(named.name) for named, task in zip(known, tasks, strict=True) if task.name is None},
        select=work.select,
    )
    made = replace(adhoc(known, agents, rule), upstreams=directory.upstreams, notes=directory.notes)
    first = next(iter(workers))
    kept = roles if work.select is None else {key: role for key, role in roles.items() if key[1] == first}
    return _with_contracts(made, list(kept.values()))


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
    given: dict[str, object] = {
        "--agent": work.agent,
        "--agents": work.agents,
        "--command": work.command,
        "--pattern": work.pattern,
    }
    given |= {"--best-of": work.best_of, "--select": work.select}
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
        return {work.agent or "": work.best_of or 1}
    found: dict[str, int] = {}
    for part in work.agents.split(","):
        name, _, count = part.strip().partition(":")
        if not name or not (count or "1").isdigit() or not 1 <= int(count or "1") <= MOST_OF_ONE or name in found:
            raise BadInput(f"--agents {work.agents!r}: give names and numbers, like claude:3,codex:2")
        found[name] = int(count or "1")
    return found


def _assert_choice(work: RequestedWork, workers: Mapping[str, int]) -> None:
    """Refuse a choice of the best result without several results, or without a way to compare them."""
    if work.best_of is not None and not 2 <= work.best_of <= MOST_OF_ONE:
        raise BadInput(f"--best-of must be from 2 to {MOST_OF_ONE}, not {work.best_of}")
    if work.best_of is not None and work.agents is not None:
        raise BadInput("give `--best-of` or `--agents`, not both: `--agents claude:3` starts three")
    if work.best_of is not None and work.select is None:
        raise BadInput("--best-of needs `--select COMMAND`, which runs on each result, like --select 'pytest -q'")
    if work.select is not None and not work.select.strip():
        raise BadInput("--select is empty; give a command that exits with 0 on a good result")
    if work.select is not None and sum(workers.values()) < 2:
        raise BadInput("--select chooses among several results: add `--best-of 3`, or `--agents claude:2,codex:1`")
    if work.select is not None and work.pattern is not None:
        raise BadInput("give `--select` or `--pattern`, not both: all agents have to end before their results compare")


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
