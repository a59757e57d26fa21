"""Set-up of a workspace: made once and shared as a layer where that can be, else run in the workspace itself."""

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from shoal.engine.grants import network_of
from shoal.engine.job import Job
from shoal.engine.lease import Lease, leased
from shoal.engine.setup_box import STREAM, commands_run, tools_of
from shoal.engine.setup_note import LEFT, noted, pattern, remembered
from shoal.engine.setup_project import root_covers
from shoal.engine.site import Site
from shoal.engine.toolchain import Toolchain
from shoal.errors import BadInput, SetupFailed
from shoal.git.gitdir import user_config, write_gitdir
from shoal.git.refs import ABSENT, Move, move
from shoal.git.run import git
from shoal.model.events import Output
from shoal.model.policy import Layers
from shoal.model.repository import Base
from shoal.model.setup import Setup
from shoal.sandboxes.kind import RootLayers
from shoal.workspaces.base import settings_digest
from shoal.workspaces.kind import Workspace
from shoal.workspaces.overlay import Overlay
from shoal.workspaces.remove import removed
from shoal.workspaces.setup import TREE, is_ready, layer_ready
from shoal.workspaces.setup_files import copied

# What packages are installed by: where one of these changes, set-up is run anew.
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
class Ready:
    """What set-up comes to for one workspace: a *layer* that was made already, or commands to run *inside* of it."""

    layer: Path | None = None
    trees: tuple[Path, ...] = ()
    alias: Path | None = None
    inside: Setup | None = None
    tools: Toolchain = field(default_factory=lambda: Toolchain((), ()))
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_nothing(self) -> bool:
        """Say whether the workspace is as it is."""
        return self.layer is None and self.inside is None


NOTHING = Ready()


def setup_of(site: Site, job: Job) -> Setup:
    """Find the nearest word on set-up; the repository's own counts behind a wall, where no document says any."""
    if (said := job.task.nearest_setup) is not None:
        return said
    project = site.project
    if project.setup is None or site.sandbox.name == "none":
        return Setup()
    if project.problem:
        raise SetupFailed(f"setup failed: {project.problem}")
    return project.setup


@contextlib.asynccontextmanager
async def set_up(site: Site, job: Job, stop: asyncio.Event | None) -> AsyncIterator[Ready]:
    """Make ready what the workspace of *job* is to begin with; told to stop, it gives what there is."""
    setup = setup_of(site, job)
    if site.project.refusal:
        raise BadInput(site.project.refusal)
    if not setup.commands and not site.project.included:
        yield NOTHING
        return
    stop = stop or asyncio.Event()
    if not isinstance(site.kind, Overlay) or not site.sandbox.mounts or (setup.commands and setup.is_each):
        yield Ready(inside=setup, stop=stop, tools=tools_of(site, setup))
        return
    key, at = await _layer_of(site, job, setup)
    makers: list[Path] = []

    async def make(aside: Path) -> bool:
        makers.append(aside)
        return await _made(at, job, setup, aside, key, stop)

    async with contextlib.AsyncExitStack() as held:
        try:
            held_to = (setup.timeout, job.limits)
            ready = layer_ready(site.paths.setups, key, make, stop, held_to=held_to)
            layer = await held.enter_async_context(ready)
        except SetupFailed:
            if not makers:
                _say(site, job, "it failed for another session, which this one had waited for")
            raise
        if layer is None:
            yield NOTHING
            return
        if setup.commands and not makers:
            _say(site, job, "made before, and used again")
        alias, tools = site.paths.setups / "at" / key, tools_of(site, setup)
        yield Ready(layer=layer, trees=_stacked(site.base, at.base, layer), alias=alias, tools=tools, stop=stop)


async def laid(
    site: Site, job: Job, ready: Ready, workspace: Workspace, lease: Lease, renew: Callable[[], None]
) -> None:
    """Finish an open workspace: run what is to be run inside, and tell its git what is not the agent's work.

    *renew* makes the home and the gitdir again, which are taken away after commands had them.
    """
    workspace.covers, workspace.alias = root_covers(site), ready.alias
    workspace.tools, workspace.search = ready.tools.read, ready.tools.path
    try:
        left = ready.layer / LEFT if ready.layer else await _inside(site, job, ready, workspace, lease, renew)
    except Exception:
        await _unbranched(site, job)
        raise
    if (
        ready.layer and ready.trees[0] == ready.layer / TREE
    ):  # over it, what earlier steps did may be the same by chance
        remembered(ready.layer, lease.box)
    included = [pattern(os.fsencode(name)) for name in site.project.included if "\n" not in name]
    exclude = b"".join(line + b"\n" for line in included)
    if exclude:
        (lease.box / LEFT).mkdir(exist_ok=True)
        (lease.box / LEFT / "included").write_bytes(exclude)
    if left is not None:
        exclude += (left / "exclude").read_bytes()
        await _assumed(lease.git, left / "assumed")
    if exclude:
        (lease.git / "info").mkdir(exist_ok=True)
        (lease.git / "info" / "exclude").write_bytes(exclude)


async def _inside(
    site: Site, job: Job, ready: Ready, workspace: Workspace, lease: Lease, renew: Callable[[], None]
) -> Path | None:
    """Set one workspace up by itself."""
    setup = ready.inside or Setup()
    if site.project.files is not None:
        copied(site.project.files, workspace.changes, site.project.included)
    if not setup.commands:
        return None
    await commands_run(site, job, replace(setup, each=True), workspace, lease, ready.stop)
    # We write there next: a link that was left would lead us out of the wall. And its commits are not the agent's.
    pointer = () if site.sandbox.mounts or workspace.is_overlay else (workspace.path / ".git",)
    await removed(lease.git, lease.home, *pointer)
    renew()
    (await noted(site, workspace, lease.box)).write(lease.box / LEFT)
    return lease.box / LEFT


async def _unbranched(site: Site, job: Job) -> None:
    """Take the branch of a linked worktree away again, which no agent will ever be on."""
    if site.kind.name == "worktree":
        await move(site.repository, [Move(f"refs/heads/{job.branch}", ABSENT, site.base.commit)])


async def _assumed(gitdir: Path, names: Path) -> None:
    """Let the agent's own git pass over what set-up changed: `git commit -a` would make it the agent's work."""
    paths = names.read_bytes()
    if paths:
        await git(gitdir, "update-index", "--assume-unchanged", "-z", "--stdin", stdin=paths)


async def _made(site: Site, job: Job, setup: Setup, aside: Path, key: str, stop: asyncio.Event) -> bool:
    """Run the commands at a path of their own, over the base, and keep the layer that they wrote."""
    at, upper, box = site.paths.setups / "at" / key, aside / TREE, aside / "box"
    for folder in (at, upper, aside / "work", box):
        folder.mkdir(exist_ok=True)
    if site.project.files is not None:
        copied(site.project.files, upper, site.project.included)
    if setup.commands:
        workspace = _workspace(site, aside, at)
        with leased(box, job.session, {}, site.user, disk=box) as lease:
            (lease.home / ".gitconfig").write_text(user_config(site.repository.identity), errors="surrogateescape")
            write_gitdir(lease.git, site.repository, head=site.base.commit, refs={}, index=site.base.index)
            if not await commands_run(site, job, replace(setup, each=False), workspace, lease, stop):
                return False
            (await noted(site, workspace, box)).write(aside / LEFT)
    else:
        (aside / LEFT).mkdir()
        for name in ("exclude", "assumed"):
            (aside / LEFT / name).touch()
    await removed(box, aside / "work")
    return True


def _workspace(site: Site, aside: Path, at: Path) -> Workspace:
    """Describe the workspace of set-up; only boxes mount it, so that a kill leaves no mount."""
    kind = RootLayers if isinstance(site.kind, Overlay) and site.kind.by_host else Layers
    layers = kind(lower=site.base.trees, upper=aside / TREE, work=aside / "work", target=at)
    return Workspace(path=at, index=site.base.index, changes=aside / TREE, layers=layers)


def _stacked(base: Base, made_on: Base, layer: Path) -> tuple[Path, ...]:
    """Lay set-up's layer over the base that it was made on, and below what later steps changed."""
    above = len(base.trees) - len(made_on.trees)
    return (*base.trees[:above], layer / TREE, *made_on.trees)


async def _layer_of(site: Site, job: Job, setup: Setup) -> tuple[str, Site]:
    """Name the layer for *job*, and the site on which it is made: that of the run, as long as it fits.

    One that is made on the work of agents is named after it: what they wrote may be run by the commands, and nobody
    who does not build on that work may be given the outcome.
    """
    ground = site.base.ground
    key = _key(site, job, setup, ground)
    is_own = site.base.over is not None and (not is_ready(site.paths.setups, key) or await _has_other_locks(site))
    return (_key(site, job, setup, site.base), site) if is_own else (key, replace(site, base=ground))


def _key(site: Site, job: Job, setup: Setup, base: Base) -> str:
    """Name all that the outcome depends on."""
    by_host = isinstance(site.kind, Overlay) and site.kind.by_host
    env = {**job.task.agent.env, **job.task.env}
    network = setup.network or network_of(job.task, job.adapter)
    tools = tools_of(site, setup)
    facts = [
        *(base.commit, settings_digest(site.repository), setup.commands, network, setup.source),
        *(site.project.digest, str(site.repository.top), by_host, os.getuid(), sorted(env.items())),
        [str(place) for place in (*tools.read, *tools.path, *(one.path for one in site.toolchains))],
    ]
    text = json.dumps(facts)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


async def _has_other_locks(site: Site) -> bool:
    """Say whether the lock files of a step's base differ from those of the run's."""
    wanted = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=all")
    done = await git(site.repository.git, *wanted, site.base.ground.commit, site.base.commit, limit=2**30)
    paths = done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
    return any(PurePosixPath(path).name in LOCKS for path in paths)


def _say(site: Site, job: Job, text: str) -> None:
    site.ledger.note(Output(run=site.run, session=job.session, stream=STREAM, text=text))
