"""Examine what this host supports, in a scratch repository that is removed afterwards."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from shoal.doctor.escapes import check_gateway, check_host_network, check_sandbox, find_sandbox
from shoal.doctor.host import clients, room, surroundings
from shoal.doctor.limit_breaches import breach_limits
from shoal.doctor.targets import README, scratch_folder
from shoal.errors import ShoalError, Unavailable, first_error
from shoal.git.snapshot import scratch_repository
from shoal.model.diagnosis import Diagnosis, Finding
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sandboxes.kind import Sandbox
from shoal.sandboxes.registry import DEFAULT, KINDS, confines
from shoal.sessions.context import RunContext

FILES = {README: "# Scratch\n"}
GRACE = 0.5
WORKSPACE = "workspace"
NO_OVERLAY = "worktrees are used instead, which start slower; Linux 5.11 and user namespaces would give overlays"
NO_SCRATCH = "fix that first: sandboxes and limits are tried in a scratch repository"

Tell = Callable[[tuple[Finding, ...]], None]
Sandboxes = Mapping[str, Sandbox | Unavailable]


async def diagnose(folder: Path, environ: Mapping[str, str], tell: Tell = lambda _findings: None) -> Diagnosis:
    """Try everything, and pass the findings of each area to *tell* as soon as they are known, in a fixed order."""
    found: list[Finding] = []

    def note(findings: tuple[Finding, ...]) -> None:
        found.extend(findings)
        tell(findings)

    try:
        async with scratch_folder() as scratch, asyncio.TaskGroup() as group:
            programs = group.create_task(clients(environ.get("PATH", ""), scratch / "client"))
            note(await surroundings())
            diagnosis = await _run_checks(scratch, environ, note)
            note(await room(folder, environ))
            note(await programs)
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return replace(diagnosis, findings=tuple(found))


async def _run_checks(scratch: Path, environ: Mapping[str, str], note: Tell) -> Diagnosis:
    sandboxes = {name: await find_sandbox(name, environ) for name in KINDS if confines(name)}
    standing = next((name for name, sandbox in sandboxes.items() if not isinstance(sandbox, Unavailable)), "none")
    request = RunRequest(folder=scratch / "repository", environ=environ, name="doctor", sandbox=standing, grace=GRACE)
    request.folder.mkdir()
    try:
        await scratch_repository(request.folder, FILES)
        async with open_run(request) as opened:
            return await _on(replace(opened.context, cleanup=False), sandboxes, scratch, note)
    except ShoalError as error:
        note((_refusal(error),))
        return Diagnosis(findings=())


async def _on(context: RunContext, sandboxes: Sandboxes, scratch: Path, note: Tell) -> Diagnosis:
    async with asyncio.TaskGroup() as group:
        breaches = group.create_task(breach_limits(context))
        stood = []
        for name, sandbox in sandboxes.items():
            tried = await check_sandbox(context, name, sandbox, scratch / f"bait-{name}", needed=name == DEFAULT)
            note(tried.findings)
            stood += [name] if tried.stood else []
        if stood:
            note(await check_host_network(context, scratch / "bait-network"))
            note(await check_gateway(context, scratch / "bait-gateway"))
        note((_overlay(context),))
        limits = await breaches
        note(limits)
    are_held = all(finding.held for finding in limits if finding.needed)
    named = context.enforcer.name if are_held else None
    return Diagnosis(findings=(), walls=tuple(stood), workspace=context.kind.name, limits=named)


def _overlay(context: RunContext) -> Finding:
    kind = context.kind
    by = "mounted by Shoal itself" if kind.mounts_on_host else "mounted in the agent's sandbox"
    held = kind.has_layers
    return Finding(
        area=WORKSPACE,
        name="overlay",
        held=held,
        tried="mount one, edit and delete below it",
        result=by if held else "neither Shoal nor a sandbox can mount one here",
        remedy="" if held else NO_OVERLAY,
    )


def _refusal(error: ShoalError) -> Finding:
    tried = "prepare a scratch repository as for a run"
    return Finding(
        area=WORKSPACE, name="scratch", held=False, tried=tried, result=str(error), remedy=NO_SCRATCH, needed=True
    )
