"""Run the set-up of a workspace: once, as a shared layer, where that is possible; otherwise in the workspace itself."""

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from shoal.errors import BadInput, SetupFailed
from shoal.git.gitdir import user_config, write_gitdir
from shoal.git.refs import ABSENT, Move, move
from shoal.git.run import git
from shoal.model.events import Output
from shoal.model.policy import Layers
from shoal.model.repository import Base
from shoal.model.setup import Setup, SetupRecord
from shoal.sandboxes.kind import RootLayers
from shoal.sessions.context import RunContext
from shoal.sessions.policy import network_of, setup_network
from shoal.sessions.session_control import SessionControl
from shoal.sessions.session_dir import hold_session_dir
from shoal.sessions.setup.changes import LEFT, inspect_setup, pattern, write_setup_note
from shoal.sessions.setup.project import root_covers
from shoal.sessions.setup.sandbox import STREAM, find_tools, run_commands
from shoal.sessions.toolchain import Toolchain
from shoal.sessions.worker import Session, WorkerSpec
from shoal.workspaces.base_checkouts import settings_digest
from shoal.workspaces.kind import Workspace
from shoal.workspaces.remove import remove_all
from shoal.workspaces.setup_layers import TREE, copy_files, hold_layer, is_ready

# What determines installed packages: if one of these changes, set-up runs again.
LOCKS = frozenset(
    {
        *("package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock"),
        *("bun.lockb", "deno.lock", "pyproject.toml", "uv.lock", "poetry.lock", "pdm.lock", "Pipfile", "Pipfile.lock"),
        *("requirements.txt", "setup.py", "setup.cfg", "environment.yml", "Cargo.toml", "Cargo.lock", "go.mod"),
        *("go.sum", "Gemfile", "Gemfile.lock", "composer.json", "composer.lock", "mix.exs", "mix.lock", "pubspec.yaml"),
        *("pubspec.lock", "flake.nix", "flake.lock", ".tool-versions", ".nvmrc", ".node-version", ".python-version"),
        *("conductor.json", "settings.toml", "worktrees.json", ".gitmodules"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPlan:
    """How to set up one workspace: with an existing *layer*, or with commands to run *inside* it."""

    layer: Path | None = None
    trees: tuple[Path, ...] = ()
    alias: Path | None = None
    inside: Setup | None = None
    tools: Toolchain = field(default_factory=lambda: Toolchain((), ()))
    worker: WorkerSpec | None = None
    """The worker whose set-up it is."""

    @property
    def is_nothing(self) -> bool:
        """Return whether there is no set-up."""
        return self.layer is None and self.inside is None


NOTHING = SetupPlan()


def setup_of(context: RunContext, job: WorkerSpec) -> Setup:
    """Find the set-up of a worker, with the network that it is on."""
    setup = _find_setup(context, job)
    return replace(setup, network=setup.network or setup_network(job.task, job.adapter))


def _find_setup(context: RunContext, job: WorkerSpec) -> Setup:
    """Find the set-up that takes precedence; the repository's own counts only in a sandbox, if no document has one."""
    if (setup := job.task.nearest_setup) is not None:
        return setup
    project = context.project
    if project.setup is None or not context.sandbox.confines:
        return Setup()
    if project.problem:
        raise SetupFailed(f"setup failed: {project.problem}")
    return project.setup


def setup_record(context: RunContext, job: WorkerSpec) -> SetupRecord | None:
    """Return a record of the set-up, for whoever continues the run later; `None` if there is none."""
    try:
        setup = setup_of(context, job)
    except SetupFailed:  # the session itself reports that
        return None
    if not setup.commands:
        return None
    task = job.task
    secrets = task.secrets | task.agent.secrets
    env = {
        name: context.mask.text(text) for name, text in {**task.agent.env, **task.env}.items() if name not in secrets
    }
    network = network_of(task, job.adapter)
    return SetupRecord(setup=setup, env=env, secrets=tuple(sorted(secrets)), network=network)


@contextlib.asynccontextmanager
async def set_up(context: RunContext, job: WorkerSpec, stop: asyncio.Event) -> AsyncIterator[SetupPlan]:
    """Prepare the set-up of a worker's workspace; when stopped, yield what there is."""
    setup = setup_of(context, job)
    if context.project.refusal:
        raise BadInput(context.project.refusal)
    if not setup.commands and not context.project.included:
        yield NOTHING
        return
    if not context.kind.has_layers or not context.sandbox.mounts or (setup.commands and setup.is_each):
        inside = _with_own_rights(context, job, setup)
        yield SetupPlan(inside=inside, tools=find_tools(context, inside), worker=job)
        return
    key, at, setup = await _layer_of(context, job, setup)
    if setup.is_confined:
        _say(context, job, "earlier agents changed what it installs, so it runs with this agent's network: none")
    makers: list[Path] = []

    async def make(aside: Path) -> bool:
        makers.append(aside)
        return await _make_layer(at, job, setup, aside, key, stop)

    async with contextlib.AsyncExitStack() as held:
        try:
            held_to = (setup.timeout, job.limits)
            ready = hold_layer(context.paths.setups, key, make, stop, held_to=held_to)
            layer = await held.enter_async_context(ready)
        except SetupFailed:
            if not makers:
                _say(context, job, "it failed for another session that this one waited for")
            raise
        if layer is None:
            yield NOTHING
            return
        if setup.commands and not makers:
            _say(context, job, "reused from an earlier session")
        alias, tools = context.paths.setups / "at" / key, find_tools(context, setup)
        yield SetupPlan(layer=layer, trees=_stack_layers(context.base, at.base, layer), alias=alias, tools=tools)


async def finish_setup(session: Session, ready: SetupPlan, renew: Callable[[], None]) -> None:
    """Finish an open workspace: run what must run inside, and tell its git what is not the agent's work.

    *renew* recreates the home and the gitdir, which are removed after commands had access to them.
    """
    context, workspace, directory = session.context, session.workspace, session.directory
    workspace.covers, workspace.alias = root_covers(context), ready.alias
    workspace.tools, workspace.search = ready.tools.read, ready.tools.path
    try:
        left = ready.layer / LEFT if ready.layer else await _inside(session, ready, renew)
    except Exception:
        await _remove_branch(context, session.worker)
        raise
    if ready.layer and ready.trees[0] == ready.layer / TREE:
        # On top of another layer, an earlier step may have written the same by chance.
        write_setup_note(ready.layer, directory.path)
    included = [pattern(os.fsencode(name)) for name in context.project.included if "\n" not in name]
    exclude = b"".join(line + b"\n" for line in included)
    if exclude:
        (directory.path / LEFT).mkdir(exist_ok=True)
        (directory.path / LEFT / "included").write_bytes(exclude)
    if left is not None:
        exclude += (left / "exclude").read_bytes()
        await _assume_unchanged(directory.git, left / "assumed")
    if exclude:
        (directory.git / "info").mkdir(exist_ok=True)
        (directory.git / "info" / "exclude").write_bytes(exclude)


async def _inside(session: Session, ready: SetupPlan, renew: Callable[[], None]) -> Path | None:
    """Set up a single workspace."""
    context, workspace, directory = session.context, session.workspace, session.directory
    setup = ready.inside or Setup()
    if context.project.files is not None:
        copy_files(context.project.files, workspace.changes, context.project.included)
    if not setup.commands:
        return None
    await run_commands(replace(session, worker=ready.worker or session.worker), replace(setup, each=True))
    # We write there next: a link would lead us out of the sandbox. And commits of set-up are not the agent's.
    pointer = () if context.sandbox.mounts or workspace.is_overlay else (workspace.path / ".git",)
    await remove_all(directory.git, directory.home, *pointer)
    renew()
    (await inspect_setup(context, workspace, directory.path)).write(directory.path / LEFT)
    return directory.path / LEFT


async def _remove_branch(context: RunContext, job: WorkerSpec) -> None:
    """Remove the branch of a linked worktree, which no agent will ever be on."""
    if context.kind.links_branch:
        await move(context.repository, [Move(f"refs/heads/{job.branch}", ABSENT, context.base.commit)])


async def _assume_unchanged(gitdir: Path, names: Path) -> None:
    """Let the agent's own git ignore what set-up changed: `git commit -a` would make it the agent's work."""
    paths = names.read_bytes()
    if paths:
        await git(gitdir, "update-index", "--assume-unchanged", "-z", "--stdin", stdin=paths)


async def _make_layer(
    context: RunContext, job: WorkerSpec, setup: Setup, aside: Path, key: str, stop: asyncio.Event
) -> bool:
    """Run the commands at a path of their own, on top of the base, and keep the layer that they wrote."""
    at, upper, session_dir = context.paths.setups / "at" / key, aside / TREE, aside / "box"
    for folder in (at, upper, aside / "work", session_dir):
        folder.mkdir(exist_ok=True)
    if context.project.files is not None:
        copy_files(context.project.files, upper, context.project.included)
    if setup.commands:
        workspace = _workspace(context, aside, at)
        with hold_session_dir(session_dir, job.session, {}, context.user, disk=session_dir) as directory:
            (directory.home / ".gitconfig").write_text(
                user_config(context.repository.identity), errors="surrogateescape"
            )
            base = context.base
            write_gitdir(
                directory.git, context.repository, head=base.commit, refs={}, index=base.index, lenders=context.lenders
            )
            session = Session(
                context=context,
                worker=job,
                workspace=workspace,
                directory=directory,
                log=context.output_log(job.session),
                control=SessionControl(stop=stop),
            )
            if not await run_commands(session, replace(setup, each=False)):
                return False
            (await inspect_setup(context, workspace, session_dir)).write(aside / LEFT)
    else:
        (aside / LEFT).mkdir()
        for name in ("exclude", "assumed"):
            (aside / LEFT / name).touch()
    await remove_all(session_dir, aside / "work")
    return True


def _workspace(context: RunContext, aside: Path, at: Path) -> Workspace:
    """Make the workspace of set-up; only sandboxes mount it, so that a kill leaves no mount."""
    kind = RootLayers if context.kind.mounts_on_host else Layers
    layers = kind(lower=context.base.trees, upper=aside / TREE, work=aside / "work", target=at)
    return Workspace(path=at, index=context.base.index, changes=aside / TREE, layers=layers)


def _stack_layers(base: Base, made_on: Base, layer: Path) -> tuple[Path, ...]:
    """Put set-up's layer on top of the base that it was made on, and below what later steps changed."""
    above = len(base.trees) - len(made_on.trees)
    return (*base.trees[:above], layer / TREE, *made_on.trees)


async def _layer_of(context: RunContext, job: WorkerSpec, setup: Setup) -> tuple[str, RunContext, Setup]:
    """Return the layer's key, the run context in which it is made, and the commands as they run there.

    It is made on the user's own commit, as long as agents have not changed what it installs. A layer that is made on
    agents' work has only the agent's own rights, because the commands may run what agents wrote. Its key includes that
    work, so that only sessions that build on it get the result.
    """
    users = replace(context, base=context.trusted_base)
    key, at = await _users_layer_of(users, job, setup)
    if context.base.commit == users.base.commit or not await _has_other_locks(context, at.base):
        return key, at, setup
    own = _with_own_rights(context, job, setup)
    return _key(context, job, own, context.base), context, own


async def _users_layer_of(context: RunContext, job: WorkerSpec, setup: Setup) -> tuple[str, RunContext]:
    """Return the key of a layer on the user's own commit, and its context: that of the run, if it fits."""
    bottom = context.base.bottom
    key = _key(context, job, setup, bottom)
    is_own = context.base.over is not None and (
        not is_ready(context.paths.setups, key) or await _has_other_locks(context, bottom)
    )
    return (_key(context, job, setup, context.base), context) if is_own else (key, replace(context, base=bottom))


def _with_own_rights(context: RunContext, job: WorkerSpec, setup: Setup) -> Setup:
    """Limit commands on a base with agents' work to the agent's own rights, unless the user allowed more."""
    if context.base.commit == context.trusted_base.commit or job.task.allow_executable_config:
        return setup
    return setup.within(network_of(job.task, job.adapter))


def _key(context: RunContext, job: WorkerSpec, setup: Setup, base: Base) -> str:
    """Return a digest of everything that the result depends on."""
    by_host = context.kind.mounts_on_host
    env = {**job.task.agent.env, **job.task.env}
    network = setup.network
    tools = find_tools(context, setup)
    facts = [
        *(base.commit, settings_digest(context.repository), setup.commands, network, setup.source),
        *(context.project.digest, str(context.repository.top), by_host, os.getuid(), sorted(env.items())),
        [str(place) for place in (*tools.read, *tools.path, *(toolchain.path for toolchain in context.toolchains))],
    ]
    text = json.dumps(facts)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


async def _has_other_locks(context: RunContext, other: Base) -> bool:
    """Return whether the lock files of a step's base differ from those of *other*."""
    wanted = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=all")
    done = await git(context.repository.git, *wanted, other.commit, context.base.commit, limit=2**30)
    paths = done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
    return any(PurePosixPath(path).name in LOCKS for path in paths)


def _say(context: RunContext, job: WorkerSpec, text: str) -> None:
    context.ledger.note(Output(run=context.run, session=job.session, stream=STREAM, text=text))
