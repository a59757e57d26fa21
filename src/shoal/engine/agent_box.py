"""The box of a session's agent: its command, what it may see, what it may spend, and what was decided about it."""

import secrets
from pathlib import Path

from shoal.engine.bounds import Bounds
from shoal.engine.grants import granted, network_of
from shoal.engine.job import Job
from shoal.engine.lease import SYSTEM_PATH, Lease
from shoal.engine.site import Site
from shoal.engine.toolchain import toolchain
from shoal.engine.unread import counter
from shoal.limits.kind import Group
from shoal.model.command import Command
from shoal.model.events import PermissionDecided
from shoal.model.permissions import Decision
from shoal.model.policy import Bind, Policy
from shoal.workspaces.kind import Workspace


def agent_box(
    site: Site, job: Job, workspace: Workspace, lease: Lease, argv: tuple[str, ...] | None = None
) -> tuple[Command, Policy]:
    """Say what runs in the agent's box, and what that box may see; *argv* stands in for the adapter's."""
    invocation = job.adapter.invocation(job.task)
    argv = argv or invocation.argv
    tools = toolchain(argv[0], search=site.environ.get("PATH", ""), private=site.private)
    grant = granted(site, job.task, job.adapter)
    if workspace.is_visible:
        grant.assert_real(workspace.path)  # a program of the host's may have put a link there since it was opened
    covers = (
        Bind(lease.inputs / "passwd", Path("/etc/passwd")),
        Bind(lease.inputs / "group", Path("/etc/group")),
        Bind(lease.inputs / "git", workspace.path / ".git"),
    )
    policy = site.policy(
        token=secrets.token_hex(8),
        read=(lease.inputs, *tools.read, *invocation.needs, *grant.read(workspace.path)),
        write=(*grant.write(workspace.path), lease.git, lease.own),
        covers=covers,
        layers=workspace.layers,
        network=network_of(job.task, job.adapter),
    )
    env = {**_environment(site, job, workspace, lease, tools.path), **job.task.agent.env, **job.task.env}
    return Command(argv=argv, cwd=workspace.path, env=env, stdin=invocation.stdin), policy


def bounded(site: Site, job: Job, workspace: Workspace, lease: Lease, group: Group) -> Bounds:
    """Say what a session is held to; a workspace that is a whole checkout does not count for its base."""
    given = 0 if workspace.is_overlay else site.base.bytes
    folders = (workspace.changes, lease.git, lease.own)
    return Bounds(
        group=group,
        limits=job.limits,
        folders=folders,
        given_bytes=given,
        box=lease.box,
        disk=lease.disk if job.limits.is_exact else None,
        pace=site.pace,
        unread=counter(site, folders),
    )


def note_grants(site: Site, job: Job) -> None:
    """Begin the session's audit log with what was decided before it started."""
    for decision in granted(site, job.task, job.adapter).decisions:
        note_decision(site, job, decision)


def note_decision(site: Site, job: Job, decision: Decision) -> None:
    """Record one decision in the session's own database."""
    subject, rule = site.mask.text(decision.subject), site.mask.text(decision.rule)
    site.ledger.note(
        PermissionDecided(run=site.run, session=job.session, subject=subject, rule=rule, allowed=decision.allowed)
    )


def _environment(site: Site, job: Job, workspace: Workspace, lease: Lease, path: tuple[Path, ...]) -> dict[str, str]:
    # Named only where there is something in them.
    given = {
        "SHOAL_INPUTS_DIR": (lease.inputs / "inputs", bool(job.task.inputs)),
        "SHOAL_PERMISSIONS_FILE": (lease.inputs / "permissions.json", job.task.has_permissions),
    }
    return {
        **lease.environment(),
        **{name: str(place) for name, (place, is_given) in given.items() if is_given},
        "PATH": ":".join((*map(str, path), *SYSTEM_PATH)),
        "SHOAL_RUN": site.run,
        "SHOAL_STEP": job.step,
        "SHOAL_WORKER_INDEX": str(job.index),
        "SHOAL_WORKER_COUNT": str(job.count),
        "SHOAL_WORKSPACE_PATH": str(workspace.path),
        "SHOAL_ROOT_PATH": str(site.repository.top),
        "SHOAL_BRANCH": job.branch,
    }
