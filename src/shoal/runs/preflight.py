"""Checks of a plan that refuse it before any of its agents starts."""

import importlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.adapters.client import AdapterHost
from shoal.adapters.kind import NOWHERE, Adapter
from shoal.adapters.registry import adapter_of
from shoal.errors import BadInput, Unavailable
from shoal.gateway.find_upstreams import find_upstreams
from shoal.gateway.prices import table_date
from shoal.git.refs import refuse_blocked_steps
from shoal.git.repository import resolve
from shoal.git.snapshot import is_hidden
from shoal.model.agent import ACP, AgentSpec
from shoal.model.command import Command
from shoal.model.contract import CommandContract
from shoal.model.masking import Mask
from shoal.model.plan import PipelineGroup, Plan, Stage
from shoal.model.policy import NETWORKS
from shoal.model.repository import Repository
from shoal.model.resolved_task import ResolvedTask
from shoal.model.shell import SHELL
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.clients import assert_clients
from shoal.sessions.context import RunContext
from shoal.sessions.credentials import login_secrets, secrets_of
from shoal.sessions.host_probe import assert_exact_disk, kind_of_workspace, probe_sandbox
from shoal.sessions.model_access import (
    assert_can_listen,
    assert_fixed_addresses,
    assert_listener,
    assert_upstreams,
)
from shoal.sessions.policy import assert_grants, list_agents, network_of
from shoal.sessions.session_dir import SYSTEM_PATH
from shoal.sessions.talking import assert_can_talk
from shoal.sessions.toolchain import show_folders, toolchain
from shoal.steps.workers import WorkerSettings
from shoal.workspaces.kind import Kind


def assert_tool_folders(context: RunContext) -> None:
    """Refuse a folder that would reveal what must stay hidden, or that the sandbox cannot show."""
    for folder in context.toolchains:
        if hidden := next(_find_revealed(context, folder.path.resolve()), None):
            raise BadInput(f"{folder.at}: {folder.path} cannot be shown to agents: {hidden} stays hidden from them")
        policy = context.policy(token="", read=show_folders([folder]).read, write=())
        try:  # without any effect: better now than when an agent starts
            context.sandbox.wrap(Command(argv=("true",), cwd=Path("/")), policy)
        except BadInput as error:
            raise BadInput(f"{folder.at}: {error}") from None


def _find_revealed(context: RunContext, real: Path) -> Iterator[Path]:
    """Return what would be revealed: the checkout as a whole, or anything of git's or Shoal's."""
    repository = context.repository
    yield from (path for path in (repository.top, repository.home) if path.is_relative_to(real))
    for kept in (repository.git, context.paths.root, *context.hidden):
        if kept.is_relative_to(real) or real.is_relative_to(kept):
            yield kept


PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
CERTAIN = frozenset({"&&", ">", ">>"})
"""Shell operators that keep a missing first program a failure; others could let the command succeed without it."""
SHELL_WORDS = frozenset(
    {
        *("alias", "bg", "break", "case", "cd", "command", "continue", "do", "done", "echo", "elif"),
        *("else", "esac", "eval", "exec", "exit", "export", "false", "fc", "fg", "fi", "for"),
        *("function", "getopts", "hash", "if", "in", "jobs", "kill", "local", "printf", "pwd", "read"),
        *("readonly", "return", "select", "set", "shift", "source", "test", "then", "time", "times"),
        *("trap", "true", "type", "ulimit", "umask", "unalias", "unset", "until", "wait", "while"),
    }
)


@dataclass(frozen=True, slots=True)
class _Command:
    """A command of the plan, with the task whose variables it has, and where the user wrote it."""

    where: str
    words: str | tuple[str, ...]
    task: ResolvedTask | None = None

    @property
    def program(self) -> str | None:
        """The program without which it cannot succeed; `None` if that is not certain."""
        if not isinstance(self.words, str):
            return self.words[0] if PROGRAM.fullmatch(self.words[0]) else None
        lexer = shlex.shlex(self.words, posix=True, punctuation_chars=True)
        lexer.whitespace = lexer.whitespace.replace("\n", "")  # a line that fails need not make the next fail
        try:
            first, *rest = list(lexer) or [""]
        except ValueError:
            return None
        marks = {word for word in rest if not word.strip("();<>|&\n")}
        is_program = PROGRAM.fullmatch(first) and first not in SHELL_WORDS
        return first if is_program and marks <= CERTAIN else None

    @property
    def has_own_path(self) -> bool:
        return self.task is not None and "PATH" in {**self.task.agent.env, **self.task.env}


def assert_programs(context: RunContext, plan: Plan) -> None:
    """Refuse a plan with a command whose program will not be found where it runs."""
    host = context.environ.get("PATH", "")
    shown = os.pathsep.join((*SYSTEM_PATH, *map(str, show_folders(context.toolchains).path)))
    # Set-up lets the sandbox show the programs that it names itself, if they are on the user's PATH.
    has_setup = context.project.setup is not None or any(task.nearest_setup for task in plan.assignments)
    for command in _commands(plan):
        program = command.program
        if program is None or command.has_own_path or shutil.which(program, path=shown):
            continue
        found = shutil.which(program, path=host)
        if found is None or not (has_setup or isinstance(command.words, tuple)):
            raise _unavailable(command.where, program, found)


def _commands(plan: Plan) -> Iterator[_Command]:
    for step in plan.working:
        words = step.task.agent.command
        if step.is_command and words[: len(SHELL)] == SHELL:
            yield _Command(f"step {step.name}", words[len(SHELL)], step.task)
        for contract in (*step.contracts, step.trial):
            if isinstance(contract, CommandContract):
                what = "select" if contract is step.trial else f"contract {contract.type}"
                yield _Command(f"step {step.name}: {what}", contract.command, step.task)
    if plan.merging is not None and plan.merging.verify is not None:
        place = plan.merging.places.get("verify")
        yield _Command(f"{place}: `verify`" if place else "merge.verify", plan.merging.verify.command)


def _unavailable(where: str, program: str, found: str | None) -> Unavailable:
    what = f"{where}: the program {program!r}"
    if found is None:
        return Unavailable(what, "it is not on PATH", "install it, or correct the command")
    folder = Path(found).parent
    why = f"it is {found}, but the sandbox shows only system programs"
    return Unavailable(what, why, f"show it with `runtime: {{toolchains: [{folder}]}}`")


def adapters_for(plan: Plan, host: AdapterHost, environ: Mapping[str, str]) -> dict[str, Adapter]:
    """Find the adapter of each step; one whose program is not on this host is refused."""
    for task in plan.assignments:
        kind = adapter_of(task.agent, host)
        argv = kind.invocation(task, NOWHERE).argv
        if kind.client is None:  # `assert_clients` reports a missing client, and how to install it
            toolchain(argv[0], search=environ.get("PATH", ""), private=())
        if task.agent.adapter == "python":
            from shoal.sessions.in_process import assert_agent  # imports pydantic-ai, which only its users pay for

            assert_agent(task.agent)
        if task.agent.adapter == ACP:
            importlib.import_module("shoal.sessions.acp.turn")  # reports that the protocol's SDK is missing
    return {step.name: adapter_of(step.task.agent, host) for step in plan.working}


async def equip_steps(context: RunContext, plan: Plan, adapters: Mapping[str, Adapter]) -> dict[str, WorkerSettings]:
    """Find the sandbox and the kind of workspace of each step that overrides the run's."""
    sandboxes: dict[str, Sandbox] = {}
    kinds: dict[tuple[str, str], Kind] = {}
    found: dict[str, WorkerSettings] = {}
    for step in plan.working:
        sandbox, kind = None, None
        if step.sandbox not in (None, context.sandbox.name):
            known = sandboxes.get(step.sandbox)
            sandboxes[step.sandbox] = sandbox = known or await probe_sandbox(step.sandbox, context.environ)
        if step.isolation_strategy is not None or sandbox is not None:
            strategy, behind = step.isolation_strategy or plan.isolation_strategy, sandbox or context.sandbox
            key = (strategy, behind.name)
            kinds[key] = kind = kinds.get(key) or await kind_of_workspace(
                strategy, behind, context.paths, stays=not context.cleanup
            )
        for agent in list_agents([step]):
            assert_can_listen(sandbox or context.sandbox, agent.network)
            assert_can_talk(sandbox or context.sandbox, agent.network, agent.task)
        found[step.name] = WorkerSettings(adapter=adapters[step.name], sandbox=sandbox, kind=kind)
    return found


async def with_commits(repository: Repository, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Resolve what stages start from once, for the whole run; a name that git does not know is refused."""
    found: list[Stage] = []
    for stage in stages:
        if stage.base is not None:
            stage = replace(stage, base=await _commit(repository, stage.name, stage.base))
        if isinstance(stage, PipelineGroup):
            stage = replace(stage, stages=await with_commits(repository, stage.stages))
        found.append(stage)
    return tuple(found)


async def _commit(repository: Repository, stage: str, base: str) -> str:
    try:
        return await resolve(repository, base)
    except BadInput as error:
        raise BadInput(f"step {stage}: {error}") from None


async def assert_rooted(plan: Plan, repository: Repository) -> None:
    """Refuse a plan whose branches are impossible in *repository*, or that starts from an unknown commit."""
    await refuse_blocked_steps(repository, [step.label or step.name for step in plan.working])
    await with_commits(repository, plan.steps)
    await _assert_deliverable(plan, repository)


async def _assert_deliverable(plan: Plan, repository: Repository) -> None:
    """Refuse a merge at the end that is impossible in *repository*."""
    if plan.merging is None:
        return
    if is_hidden(repository):
        raise BadInput(
            "`runtime.merge` and `auto_merge` need a git repository, but this folder is not one; remove them"
        )
    if plan.merging.into is None:
        return
    place = plan.merging.places.get("into")
    try:
        from shoal.merge.deliver import find_target  # only who delivers pays for it

        await find_target(repository, plan.merging.into)
    except BadInput as error:
        raise BadInput(f"{place}: {error}" if place else str(error)) from None


async def assert_holdable(context: RunContext, plan: Plan) -> None:
    """Refuse a plan that asks for what this host cannot enforce."""
    assert_programs(context, plan)
    assert_tool_folders(context)
    assert_grants(context, plan)
    assert_budgets(plan)
    agents = [*list_agents(plan.working)]
    if any(NETWORKS[agent.network].has_listener or agent.task.talk for agent in agents):
        await assert_listener(context)
    if any(task.limits is not None and task.limits.is_exact for task in plan.assignments):
        await assert_exact_disk(context.sandbox, context.paths)


def secret_values(task: ResolvedTask, host: AdapterHost, environ: Mapping[str, str]) -> tuple[Mapping[str, str], ...]:
    """Return the values taken from the host's environment for *task*, by name: they are secrets."""
    kind = adapter_of(task.agent, host)
    given = (*task.secret_values, secrets_of(task, kind, environ), login_secrets(kind, environ))
    if not NETWORKS[network_of(task, kind)].has_listener:
        return given
    return (*given, {upstream.key_from: upstream.key for upstream in find_upstreams((), environ)})


def assert_budgets(plan: Plan) -> None:
    """Refuse a budget for an agent whose spending nobody counts."""
    for agent in list_agents(plan.working):
        adapter, limits = agent.adapter, dict(agent.task.budgets)
        if plan.budget is not None:
            limits["run"] = plan.budget
        asks_model = adapter.client is not None or agent.task.agent.mind is not None
        if limits and asks_model and not (adapter.client is not None and NETWORKS[agent.network].has_listener):
            whose = f"the budget of the {min(limits).partition(':')[0]}"
            why = f"the step {agent.step} asks its model without the gateway, which counts what is spent"
            remedy = "give that agent `network: gateway`, or leave the budget out"
            if adapter.client is None:
                remedy = "give its agent a `budget` of its own instead"
            raise Unavailable(whose, why, remedy)


def assert_recordable(plan: Plan) -> None:
    """Refuse to record or replay an agent that asks its model past the gateway."""
    for agent in list_agents(plan.working):
        is_counted = NETWORKS[agent.network].has_listener
        if agent.task.agent.mind is not None or (agent.adapter.client is not None and not is_counted):
            why = f"the step {agent.step} asks its model without the gateway, which records"
            raise Unavailable("a recording", why, "give that agent `network: gateway`")


def budget_notes(plan: Plan) -> tuple[str, ...]:
    """Say what all agents together may spend, and by which prices that is counted."""
    if plan.budget is None and not any(task.budgets for task in plan.assignments):
        return ()
    most = "" if plan.budget is None else f" of {plan.budget.describe_limit()} for the run"
    return (f"budget{most}, by the list prices of {table_date()}",)


def mask_of(
    plan: Plan, host: AdapterHost, environ: Mapping[str, str], others: Sequence[Mapping[str, str]] = ()
) -> Mask:
    """Know all secrets of a plan, and *others*."""
    values = (values for task in plan.assignments for values in secret_values(task, host, environ))
    named = {upstream.key_from: environ.get(upstream.key_from, "") for upstream in plan.upstreams if upstream.key_from}
    return Mask.of(*values, named, *others)


async def assert_installed(plan: Plan, host: AdapterHost, environ: Mapping[str, str]) -> None:
    """Refuse a plan of which one agent's client is missing, too old, or without what it asks its model with."""
    wanted: list[tuple[Adapter, AgentSpec, bool]] = []
    for task in plan.assignments:
        adapter = adapter_of(task.agent, host)
        has_gateway = NETWORKS[network_of(task, adapter)].has_listener
        wanted.append((adapter, replace(task.agent, env={**task.agent.env, **task.env}), not has_gateway))
    await assert_clients(wanted, environ)
    for task, (adapter, _, needs_login) in zip(plan.assignments, wanted, strict=True):
        if not needs_login:
            assert_fixed_addresses(task)
            assert_upstreams(plan.upstreams, task, adapter, environ)
