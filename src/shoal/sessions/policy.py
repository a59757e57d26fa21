"""The sandbox of a session's agent: its command, its policy, its limits, and the decisions about permissions."""

import contextlib
import json
import os
import pwd
import secrets
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from shoal.adapters.client import this_host
from shoal.adapters.kind import Adapter
from shoal.adapters.registry import adapter_of
from shoal.errors import BadInput, Unavailable
from shoal.gateway.find_upstreams import WITHHELD
from shoal.gateway.hosts import HostRule
from shoal.limits.disk import ENTRY_BYTES, FILE_BYTES
from shoal.limits.kind import LimitGroup
from shoal.model.command import Command, OpenInput
from shoal.model.events import PermissionDecided, ResourcesSampled
from shoal.model.permissions import NO_RULE, NOT_LISTED, Decision, Permissions
from shoal.model.plan import Plan, Step
from shoal.model.policy import NETWORKS, Bind, Network, Policy
from shoal.model.resolved_task import ResolvedTask
from shoal.model.resources import ResourceSample
from shoal.model.setup import with_aliases
from shoal.proc.free_space import room
from shoal.sessions.clients import find_installed_name
from shoal.sessions.context import RunContext
from shoal.sessions.credentials import client_variables, secrets_of
from shoal.sessions.limit_watch import SessionBounds, counter
from shoal.sessions.model_access import ModelAccess, assert_can_listen
from shoal.sessions.session_dir import SYSTEM_PATH
from shoal.sessions.talking import assert_can_talk, talk_needs
from shoal.sessions.toolchain import show_folders, toolchain
from shoal.sessions.worker import Session

# Sockets and devices of the host: an agent that sees one can talk to it, read-only or not.
ALIVE = tuple(map(Path, ("/dev", "/proc", "/run", "/sys", "/var/run")))


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxGrant:
    """What a session's sandbox shows beyond the default.

    *outside* is read-only. *parts*, relative to the workspace, are what may be written; `None` means all of it.
    """

    outside: tuple[Path, ...]
    parts: tuple[Path, ...] | None

    def read(self, workspace: Path) -> tuple[Path, ...]:
        """Return what else is shown read-only."""
        return self.outside if self.parts is None else (*self.outside, workspace)

    def write(self, workspace: Path) -> tuple[Path, ...]:
        """Return what may be written in the workspace."""
        return (workspace,) if self.parts is None else tuple(workspace / part for part in self.parts)

    def assert_real(self, tree: Path) -> None:
        """Refuse parts that are not in *tree*, and links: each part becomes a mount, and mounting follows links."""
        for part in self.parts or ():
            _assert_real((tree,), part)


def resolve_grants(context: RunContext, task: ResolvedTask, adapter: Adapter) -> SandboxGrant:
    """Resolve the task's permissions.

    Raises `BadInput` for invalid ones, `Unavailable` for those that cannot be enforced here; none is ever dropped.
    """
    permissions = task.permitted
    network = network_of(task, adapter)
    assert_can_listen(context.sandbox, network)
    assert_can_talk(context.sandbox, network, task)
    if NETWORKS[network].has_listener:
        for host in permissions.hosts or ():
            HostRule.parse(host)
    _assert_holdable(context, permissions, network)
    outside = tuple(_outside(context, path) for path in permissions.outside)
    grant = SandboxGrant(outside=outside, parts=_parts(permissions.writable))
    for path in permissions.writable:  # also redundant ones: they should be valid too
        if path != ".":
            _assert_real(context.base.trees, Path(os.path.normpath(path)))
    if outside:
        # A sandbox refuses what it cannot show, without any effect: better now than when the agent starts.
        context.sandbox.wrap(Command(argv=("true",), cwd=Path("/")), context.policy(token="", read=outside, write=()))
    return grant


def decisions_of(context: RunContext, task: ResolvedTask, adapter: Adapter) -> tuple[Decision, ...]:
    """Say what is decided about the task before it starts."""
    network = network_of(task, adapter)
    names = task.secrets | task.agent.secrets
    if NETWORKS[network].has_listener:
        names -= WITHHELD
    else:
        names |= frozenset(secrets_of(task, adapter, context.environ))
    return tuple(_decisions(task.permitted, network, names))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAgent:
    """One of the agents of a step, and what runs it."""

    step: str
    task: ResolvedTask
    adapter: Adapter

    @property
    def network(self) -> Network:
        """Its network."""
        return network_of(self.task, self.adapter)


def list_agents(steps: Iterable[Step]) -> Iterator[PlannedAgent]:
    """Yield every agent of *steps*, of which one step can have several."""
    host = this_host()
    for step in steps:
        for task in step.tasks:
            yield PlannedAgent(step=step.name, task=task, adapter=adapter_of(task.agent, host))


def assert_grants(context: RunContext, plan: Plan) -> None:
    """Refuse a run if the permissions of one of its steps are invalid or cannot be enforced."""
    for agent in list_agents(plan.working):
        try:
            resolve_grants(context, agent.task, agent.adapter)
        except BadInput as error:
            raise BadInput(f"step {agent.step}: {error}") from error


def outside_notes(plan: Plan) -> tuple[str, ...]:
    """Describe which agents can see something of the host, to be shown with the run."""
    return tuple(
        f"step {step.name}: may read {path}, outside its workspace"
        for step in plan.working
        for path in dict.fromkeys(path for task in step.tasks for path in task.permitted.outside)
    )


def network_of(task: ResolvedTask, adapter: Adapter) -> Network:
    """Return an agent's network: its own setting, or its adapter's default."""
    return task.network or task.agent.network or adapter.default_network


def setup_network(task: ResolvedTask, adapter: Adapter) -> Network:
    """Say which network set-up is on where nobody says: the agent's, but the user's own commands need no gateway."""
    named = task.network or task.agent.network
    return named or (Network.HOST if adapter.default_network is Network.GATEWAY else adapter.default_network)


def as_json(permissions: Permissions) -> str:
    """Format permissions for an agent that applies them itself; an absent list is null."""
    return json.dumps(asdict(permissions), indent=1) + "\n"


def _assert_holdable(context: RunContext, permissions: Permissions, network: Network) -> None:
    if permissions.hosts is not None and not NETWORKS[network].holds_hosts:
        why = "with `network: host` every host can be reached"
        raise Unavailable("permissions.hosts", why, "use `network: gateway`, or leave `hosts` out")
    is_narrow = not _is_all(permissions.writable)
    if not context.sandbox.confines and (is_narrow or permissions.hosts is not None):
        what = "permissions.writable" if is_narrow else "permissions.hosts"
        raise Unavailable(what, "without a sandbox nothing enforces it", "use the bubblewrap or landlock sandbox")


def _outside(context: RunContext, path: str) -> Path:
    """Check one path of the host that an agent may read."""
    place = Path(path)
    if why := _unreadable(context, place):
        raise BadInput(f"permissions: {path} cannot be made readable: {why}")
    return place


def _unreadable(context: RunContext, place: Path) -> str | None:
    try:
        real = Path(os.path.realpath(place, strict=True))
    except (OSError, ValueError):
        return "it does not exist, or you have no access to it"
    if real != place:
        return f"it is a link to {real}; name that instead"
    if not stat.S_ISDIR(mode := real.stat().st_mode) and not stat.S_ISREG(mode):
        return "it is neither a folder nor a regular file"
    if any(real == home or home.is_relative_to(real) for home in _homes(context)):
        return "it contains your home; name a folder in it"
    kept = (*context.hidden, context.paths.root, context.repository.git)
    if found := next((path for path in kept if _touches(real, path)), None):
        return f"{found} stays hidden from agents"
    if found := next((path for path in ALIVE if _touches(real, path)), None):
        return f"{found} contains sockets or devices of the host"
    return None


def _homes(context: RunContext) -> set[Path]:
    named = [context.environ.get("HOME", "")]
    with contextlib.suppress(KeyError):  # a container's user may have no entry
        named.append(pwd.getpwuid(os.getuid()).pw_dir)
    return {Path(os.path.realpath(path)) for path in named if path.strip("/")}


def _touches(path: Path, other: Path) -> bool:
    return path.is_relative_to(other) or other.is_relative_to(path)


def _is_all(writable: Iterable[str]) -> bool:
    return any(path == "." or os.path.normpath(path) == "." for path in writable)


def _parts(writable: tuple[str, ...]) -> tuple[Path, ...] | None:
    """Return the writable paths; one below another needs no mount of its own."""
    if _is_all(writable):
        return None
    parts = {Path(os.path.normpath(path)) for path in writable}
    return tuple(sorted(part for part in parts if not parts & set(part.parents)))


def _assert_real(trees: tuple[Path, ...], part: Path) -> None:
    for path in (*reversed(part.parents[:-1]), part):
        mode = next((mode for tree in trees if (mode := _mode(tree / path))), 0)
        if not mode or stat.S_ISCHR(mode):  # a layer's mark for a deleted file
            what = f"permissions: writable {str(part)!r} is not in the base"
            raise BadInput(f"{what}; commit it first, or name another")
        if not stat.S_ISDIR(mode) and (path != part or not stat.S_ISREG(mode)):
            why = f"{str(path)!r} is a link" if stat.S_ISLNK(mode) else f"{str(path)!r} is not a folder"
            raise BadInput(f"permissions: writable {str(part)!r} cannot be opened: {why}; name a real path")


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except (OSError, ValueError):
        return 0


def _decisions(permissions: Permissions, network: Network, names: frozenset[str]) -> Iterator[Decision]:
    """Say what was granted and denied at the start, for the audit log; what is as usual is not worth a word."""
    yield from (Decision(True, path, f"read {path}") for path in permissions.outside)
    if not _is_all(permissions.writable):
        yield from (Decision(True, path, f"write {path}") for path in permissions.writable)
        yield Decision(False, NOT_LISTED, f"write anything{' else' if permissions.writable else ''} in the workspace")
    rule = NO_RULE if permissions.env is None else "env"
    yield from (Decision(True, rule, f"env {name}") for name in sorted(names))
    has_gateway = NETWORKS[network].has_listener
    yield from (Decision(has_gateway, f"network: {network}", f"host {host}") for host in permissions.hosts or ())
    if permissions.allowed_tools is not None or permissions.deny:
        allowed = "all" if permissions.allowed_tools is None else ", ".join(permissions.allowed_tools) or "none"
        yield Decision(True, f"allow {allowed}; deny {', '.join(permissions.deny) or 'none'}", "tools")


PASSWD, GROUP = Path("/etc/passwd"), Path("/etc/group")

SUBJECT_CHARS = 2000


def agent_command(
    session: Session, argv: tuple[str, ...] | None = None, *, model: ModelAccess | None = None
) -> tuple[Command, Policy]:
    """Give the agent's command and the policy of its sandbox; *argv* replaces the adapter's own."""
    context, worker, workspace, directory = session.context, session.worker, session.workspace, session.directory
    paths = replace(session.paths, gateway=model.access if model else None, talk=model.talk if model else None)
    invocation = worker.adapter.invocation(session.task, paths)
    argv = argv or invocation.argv
    search = context.environ.get("PATH", "")
    argv = (find_installed_name(worker.adapter.client, argv[0], search), *argv[1:])
    tools = toolchain(argv[0], search=search, private=context.private)
    shown = (*tools.read, *show_folders(context.toolchains).read, *workspace.tools)
    grant = resolve_grants(context, worker.task, worker.adapter)
    if workspace.is_visible:
        grant.assert_real(workspace.path)  # a program on the host may have put a link there since it was opened
    covers = _covers(session, is_writable=grant.parts is None) if context.sandbox.mounts else ()
    needs = (*invocation.needs, *(talk_needs(model.talk) if model else ()))
    policy = context.policy(
        token=secrets.token_hex(8),
        read=(*directory.shown, *shown, *needs, *grant.read(workspace.path)),
        write=(*grant.write(workspace.path), directory.git, directory.own),
        covers=covers,
        layers=workspace.layers,
        network=network_of(worker.task, worker.adapter),
        is_served=model is not None and model.listen is not None,
    )
    env = {
        **NETWORKS[policy.network].env,
        **context.repository.identity.dates,
        **environment(session, tuple(dict.fromkeys((*tools.path, *workspace.search)))),
        **invocation.env,
        **client_variables(worker.task, worker.adapter, context.environ),
        **worker.task.agent.env,
        **worker.task.env,
    }
    if model is not None:
        env = model.environment(env, invocation.env)
    stdin = OpenInput() if invocation.is_live else invocation.stdin
    return Command(argv=argv, cwd=workspace.path, env=env, stdin=stdin), policy


def identity_covers(session: Session) -> tuple[Bind, ...]:
    """Cover the files from which programs in a sandbox learn who they are and where their gitdir is."""
    inputs = session.directory.inputs
    return (
        Bind(inputs / "passwd", PASSWD),
        Bind(inputs / "group", GROUP),
        Bind(inputs / "git", session.workspace.path / ".git"),
    )


def _covers(session: Session, *, is_writable: bool) -> tuple[Bind, ...]:
    """Cover files of the host; show the workspace also at the path that set-up used, with the same cover on `.git`."""
    workspace = session.workspace
    covers = (*identity_covers(session), *workspace.covers)
    if workspace.alias is None:
        return covers
    pointer = Bind(session.directory.inputs / "git", workspace.alias / ".git")
    return (*covers, Bind(workspace.path, workspace.alias, is_writable), pointer)


def session_bounds(session: Session, group: LimitGroup) -> SessionBounds:
    """Return the limits of a session; the base of a workspace that is a whole checkout does not count."""
    context, directory = session.context, session.directory
    folders = own_folders(session)
    return SessionBounds(
        group=group,
        limits=session.worker.limits,
        folders=folders,
        given_bytes=measure_base(session),
        session_dir=directory.path,
        disk=directory.disk if session.worker.limits.is_exact else None,
        pace=context.pace,
        floor=context.floor,
        at_start=room(directory.path),
        clock=session.control.clock,
        meter=session.control.meter,
        record=partial(_note_sample, session),
        unread=counter(context, folders),
        database=directory.shared,
    )


def own_folders(session: Session) -> tuple[Path, ...]:
    """List where the agent of a session can store files."""
    return session.workspace.changes, session.directory.git, session.directory.own


def measure_base(session: Session) -> int:
    """Return how much of that is the base, which an overlay does not copy."""
    base = session.context.base
    return 0 if session.workspace.is_overlay else base.bytes + base.files * (ENTRY_BYTES + FILE_BYTES)


def _note_sample(session: Session, sample: ResourceSample) -> None:
    """Record in the session's log what it uses."""
    session.context.ledger.note(ResourcesSampled(run=session.context.run, session=session.id, sample=sample))


def note_grants(session: Session) -> None:
    """Begin the session's audit log with the decisions made before it started."""
    for decision in decisions_of(session.context, session.worker.task, session.worker.adapter):
        note_decision(session, decision)


def note_decision(session: Session, decision: Decision) -> None:
    """Record a decision in the session's own database."""
    context = session.context
    # Masked before it is cut; otherwise half of a secret could remain.
    subject, rule = context.mask.text(decision.subject)[:SUBJECT_CHARS], context.mask.text(decision.rule)
    context.ledger.note(
        PermissionDecided(run=context.run, session=session.id, subject=subject, rule=rule, allowed=decision.allowed)
    )


def environment(session: Session, path: tuple[Path, ...]) -> dict[str, str]:
    """Return the session's variables, including the names that scripts written for other tools know."""
    context, worker, directory = session.context, session.worker, session.directory
    # Only named if they contain something.
    laid = {
        "SHOAL_INPUTS_DIR": ("inputs", bool(worker.task.inputs)),
        "SHOAL_PERMISSIONS_FILE": ("permissions.json", worker.task.has_permissions),
    }
    named = {
        **directory.environment(),
        **{name: f"{directory.inputs}/{title}" for name, (title, is_given) in laid.items() if is_given},
        "PATH": ":".join((*map(str, path), *SYSTEM_PATH, *map(str, show_folders(context.toolchains).path))),
        "SHOAL_RUN": context.run,
        "SHOAL_STEP": worker.step,
        "SHOAL_WORKER_INDEX": str(worker.index),
        "SHOAL_WORKER_COUNT": str(worker.count),
        "SHOAL_MAX_CONCURRENT_AGENTS": str(worker.task.max_concurrent_agents),
        "SHOAL_WORKSPACE_PATH": str(session.workspace.path),
        "SHOAL_ROOT_PATH": str(context.repository.top),
        "SHOAL_BRANCH": worker.branch,
        "CONDUCTOR_DEFAULT_BRANCH": context.repository.branch or "main",
    }
    return with_aliases(named)
