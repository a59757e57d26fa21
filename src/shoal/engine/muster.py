"""Everything about a plan that can be refused before any of its agents starts."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.adapters.host import Host
from shoal.adapters.kind import NOWHERE, Adapter
from shoal.adapters.registry import adapter_of
from shoal.engine.clients import assert_clients
from shoal.engine.credentials import login_secrets, secrets_of
from shoal.engine.grants import assert_grants
from shoal.engine.ground import assert_exact_disk, kind_of_workspace, wall
from shoal.engine.jobs import Equipment
from shoal.engine.site import Site
from shoal.engine.toolchain import toolchain
from shoal.engine.toolfolders import assert_tool_folders
from shoal.errors import BadInput
from shoal.git.refs import refuse_blocked_steps
from shoal.git.repository import resolve
from shoal.model.assignment import Assignment
from shoal.model.client_names import ACP
from shoal.model.masking import Mask
from shoal.model.plan import Group, Plan, Stage
from shoal.model.repository import Repository
from shoal.sandboxes.kind import Sandbox
from shoal.workspaces.kind import Kind


def adapters_for(plan: Plan, host: Host, environ: Mapping[str, str]) -> dict[str, Adapter]:
    """Find the adapter of each step; one whose program is not on this host is refused."""
    for task in plan.assignments:
        kind = adapter_of(task.agent, host)
        argv = kind.invocation(task, NOWHERE).argv
        if kind.client is None:  # what is missing of a client is told by who knows how it is installed
            toolchain(argv[0], search=environ.get("PATH", ""), private=())
        if task.agent.adapter == "python":
            from shoal.engine.inprocess import assert_agent  # brings in pydantic-ai, which only its users pay for

            assert_agent(task.agent)
        if task.agent.adapter == ACP:
            importlib.import_module("shoal.engine.acp.turn")  # says so where the protocol's SDK is missing
    return {step.name: adapter_of(step.task.agent, host) for step in plan.working}


async def equipped(site: Site, plan: Plan, adapters: Mapping[str, Adapter]) -> dict[str, Equipment]:
    """Find the wall and the kind of workspace of each step that asks for others than the run's."""
    walls: dict[str, Sandbox] = {}
    kinds: dict[tuple[str, str], Kind] = {}
    found: dict[str, Equipment] = {}
    for step in plan.working:
        sandbox, kind = None, None
        if step.sandbox not in (None, site.sandbox.name):
            walls[step.sandbox] = sandbox = walls.get(step.sandbox) or await wall(step.sandbox)
        if step.isolation_strategy is not None or sandbox is not None:
            strategy, behind = step.isolation_strategy or plan.isolation_strategy, sandbox or site.sandbox
            key = (strategy, behind.name)
            kinds[key] = kind = kinds.get(key) or await kind_of_workspace(strategy, behind, site.paths)
        found[step.name] = Equipment(adapter=adapters[step.name], sandbox=sandbox, kind=kind)
    return found


async def with_commits(repository: Repository, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Resolve what stages start from once, for all of the run; a name that git does not know is refused."""
    found: list[Stage] = []
    for stage in stages:
        if stage.base is not None:
            stage = replace(stage, base=await _commit(repository, stage.name, stage.base))
        if isinstance(stage, Group):
            stage = replace(stage, stages=await with_commits(repository, stage.stages))
        found.append(stage)
    return tuple(found)


async def _commit(repository: Repository, stage: str, base: str) -> str:
    try:
        return await resolve(repository, base)
    except BadInput as error:
        raise BadInput(f"step {stage}: {error}") from None


async def assert_rooted(plan: Plan, repository: Repository) -> None:
    """Refuse a plan whose branches have no place in *repository*, or that starts from what is not there."""
    await refuse_blocked_steps(repository, [step.name for step in plan.working])
    await with_commits(repository, plan.steps)


async def assert_holdable(site: Site, plan: Plan, adapters: Mapping[str, Adapter]) -> None:
    """Refuse a plan that asks for what cannot be held here."""
    assert_tool_folders(site)
    assert_grants(site, plan, adapters)
    if any(task.limits is not None and task.limits.is_exact for task in plan.assignments):
        await assert_exact_disk(site.sandbox, site.paths)


def secret_values(task: Assignment, host: Host, environ: Mapping[str, str]) -> tuple[Mapping[str, str], ...]:
    """Give the values that were taken from the host's environment for *task*, by their names: they are secrets."""
    kind = adapter_of(task.agent, host)
    return (*task.secret_values, secrets_of(task, kind, environ), login_secrets(kind, environ))


def mask_of(plan: Plan, host: Host, environ: Mapping[str, str]) -> Mask:
    """Know all secrets of a plan."""
    return Mask.of(*(values for task in plan.assignments for values in secret_values(task, host, environ)))


async def assert_installed(plan: Plan, host: Host, environ: Mapping[str, str]) -> None:
    """Refuse a plan of which one agent's client is missing, too old or not logged in."""
    tasks = [replace(task.agent, env={**task.agent.env, **task.env}) for task in plan.assignments]
    await assert_clients(((adapter_of(one, host), one) for one in tasks), environ)
