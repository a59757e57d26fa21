"""The box of a session's agent: its command, what it may see, what it may spend, and what was decided about it."""

import secrets
from pathlib import Path

from shoal.adapters.kind import Place
from shoal.engine.bounds import Bounds
from shoal.engine.credentials import handed
from shoal.engine.grants import decisions_of, granted, network_of
from shoal.engine.job import Job
from shoal.engine.lease import SYSTEM_PATH, Lease
from shoal.engine.site import Site
from shoal.engine.toolchain import given, toolchain
from shoal.engine.unread import counter
from shoal.limits.kind import Group
from shoal.model.command import Command, Live
from shoal.model.events import PermissionDecided
from shoal.model.permissions import Decision
from shoal.model.policy import Bind, Policy
from shoal.model.setup import with_aliases
from shoal.workspaces.kind import Workspace

PASSWD, GROUP = Path("/etc/passwd"), Path("/etc/group")

SUBJECT_SIGNS = 2000


def agent_box(
    site: Site, job: Job, workspace: Workspace, lease: Lease, argv: tuple[str, ...] | None = None
) -> tuple[Command, Policy]:
    """Say what runs in the agent's box, and what that box may see; *argv* stands in for the adapter's."""
    invocation = job.adapter.invocation(job.task, place_of(workspace, lease))
    argv = argv or invocation.argv
    tools = toolchain(argv[0], search=site.environ.get("PATH", ""), private=site.private)
    shown = (*tools.read, *given(site.toolchains).read, *workspace.tools)
    grant = granted(site, job.task, job.adapter)
    if workspace.is_visible:
        grant.assert_real(workspace.path)  # a program of the host's may have put a link there since it was opened
    covers = _covers(workspace, lease, is_writable=grant.parts is None) if site.sandbox.mounts else ()
    policy = site.policy(
        token=secrets.token_hex(8),
        read=(lease.inputs, *shown, *invocation.needs, *grant.read(workspace.path)),
        write=(*grant.write(workspace.path), lease.git, lease.own),
        covers=covers,
        layers=workspace.layers,
        network=network_of(job.task, job.adapter),
    )
    env = {
        **environment(site, job, workspace, lease, tuple(dict.fromkeys((*tools.path, *workspace.search)))),
        **invocation.env,
        **handed(job.task, job.adapter, site.environ),
        **job.task.agent.env,
        **job.task.env,
    }
    stdin = Live() if invocation.is_live else invocation.stdin
    return Command(argv=argv, cwd=workspace.path, env=env, stdin=stdin), policy


def _covers(workspace: Workspace, lease: Lease, *, is_writable: bool) -> tuple[Bind, ...]:
    """Say what is laid over files that every box has."""
    return (
        Bind(lease.inputs / "passwd", PASSWD),
        Bind(lease.inputs / "group", GROUP),
        Bind(lease.inputs / "git", workspace.path / ".git"),
        *workspace.covers,
        *_alias(workspace, lease, is_writable=is_writable),
    )


def _alias(workspace: Workspace, lease: Lease, *, is_writable: bool) -> tuple[Bind, ...]:
    """Show the workspace where set-up knew it too, with the same cover on its `.git`."""
    if workspace.alias is None:
        return ()
    pointer = Bind(lease.inputs / "git", workspace.alias / ".git")
    return (Bind(workspace.path, workspace.alias, is_writable), pointer)


def place_of(workspace: Workspace, lease: Lease) -> Place:
    """Say where the agent stands."""
    return Place(home=lease.home, inputs=lease.inputs, workspace=workspace.path)


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
    for decision in decisions_of(site, job.task, job.adapter):
        note_decision(site, job, decision)


def note_decision(site: Site, job: Job, decision: Decision) -> None:
    """Record one decision in the session's own database; masked before it is cut, or half of a secret could pass."""
    subject, rule = site.mask.text(decision.subject)[:SUBJECT_SIGNS], site.mask.text(decision.rule)
    site.ledger.note(
        PermissionDecided(run=site.run, session=job.session, subject=subject, rule=rule, allowed=decision.allowed)
    )


def environment(site: Site, job: Job, workspace: Workspace, lease: Lease, path: tuple[Path, ...]) -> dict[str, str]:
    """Name the session and what it was given, also in words that scripts written for other tools know."""
    # Named only where there is something in them.
    laid = {
        "SHOAL_INPUTS_DIR": ("inputs", bool(job.task.inputs)),
        "SHOAL_PERMISSIONS_FILE": ("permissions.json", job.task.has_permissions),
    }
    named = {
        **lease.environment(),
        **{name: f"{lease.inputs}/{title}" for name, (title, is_given) in laid.items() if is_given},
        "PATH": ":".join((*map(str, path), *SYSTEM_PATH, *map(str, given(site.toolchains).path))),
        "SHOAL_RUN": site.run,
        "SHOAL_STEP": job.step,
        "SHOAL_WORKER_INDEX": str(job.index),
        "SHOAL_WORKER_COUNT": str(job.count),
        "SHOAL_WORKSPACE_PATH": str(workspace.path),
        "SHOAL_ROOT_PATH": str(site.repository.top),
        "SHOAL_BRANCH": job.branch,
        "CONDUCTOR_DEFAULT_BRANCH": site.repository.branch or "main",
    }
    return with_aliases(named)
