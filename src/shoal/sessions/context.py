"""The run context: repository, state, sandbox, kind of workspace and base, decided before any agent starts."""

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.databases.kind import Databases
from shoal.gateway.budget import BudgetBook
from shoal.gateway.kind import ModelGateway
from shoal.git.closure import OnGather
from shoal.limits.guard import Guard
from shoal.limits.kind import Enforcer
from shoal.model.executable_files import ExecutableRules
from shoal.model.gateway import Recording, Upstream
from shoal.model.limits import WORK_BOUNDS, WorkBounds
from shoal.model.masking import Mask
from shoal.model.policy import Bind, Layers, Network, Policy
from shoal.model.repository import Base, Repository
from shoal.model.setup import Aside, Project, ToolFolder
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.clocks import PollInterval
from shoal.sessions.host_disk import HostDiskWatch
from shoal.sessions.output_log import FloodControl, OutputLog
from shoal.sessions.session_dir import User
from shoal.store.ledger import Ledger
from shoal.store.paths import StatePaths
from shoal.talk.hub import TalkHub
from shoal.workspaces.kind import Kind
from shoal.workspaces.remove import Trash


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What all sessions of one run share."""

    run: str
    repository: Repository
    paths: StatePaths
    ledger: Ledger
    sandbox: Sandbox
    kind: Kind
    base: Base
    environ: Mapping[str, str]
    trash: Trash
    enforcer: Enforcer
    user: User
    mask: Mask = field(default_factory=Mask, repr=False)
    grace: float = 5.0
    cleanup: bool = True
    keeps_database: bool = False
    """Whether an agent's own database is stored with its results."""
    checkpoint_seconds: float | None = None
    """How often an agent's files are saved while it works; `None` means never."""
    checkpoint_turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1), repr=False)
    """Held while a checkpoint is made: one at a time, so that working agents are hardly slowed down."""
    is_guarded: bool = False
    """Whether the guard alone ends all groups of this run when we are killed."""
    guard: Guard | None = field(default=None, repr=False)
    """The guard, which ends the sandboxes of agents when we are killed."""
    base_stays: bool = True
    """Whether the base is held as long as the run lives, and not for one session only."""
    aside: Aside | None = None
    """The client settings of the base that clients start without."""
    trusted: Base | None = None
    """The user's own commit that the base builds on, if the base contains work of agents."""
    toolchains: tuple[ToolFolder, ...] = ()
    """The folders that the user named to be shown in every sandbox of set-up and agents."""
    executable: ExecutableRules = field(default_factory=ExecutableRules)
    """The user's changes to the rules for files that run code."""
    project: Project = field(default_factory=Project, repr=False)
    flood: FloodControl = field(default_factory=FloodControl, repr=False)
    pace: PollInterval = field(default_factory=PollInterval, repr=False)
    floor: HostDiskWatch = field(default_factory=HostDiskWatch, repr=False)
    bounds: WorkBounds = WORK_BOUNDS
    """Limits for our own work on agents' files."""
    on_gather: OnGather | None = field(default=None, repr=False)
    gateway: ModelGateway | None = field(default=None, repr=False)
    """The way of agents on `network: gateway` to their models; its processes run once an agent needs them."""
    databases: Databases | None = field(default=None, repr=False)
    """The server on which sessions have their databases; `None` where each has a SQLite file."""
    recording: Recording | None = None
    """Where what agents ask their models is recorded, or answered from; `None` in most runs."""
    budgets: BudgetBook = field(default_factory=BudgetBook, repr=False)
    """What may be spent on models, and what was."""
    talk: TalkHub | None = field(default=None, repr=False)
    """What agents of the run that may talk say to each other."""
    upstreams: tuple[Upstream, ...] = field(default=(), repr=False)
    """The models that the user's file names."""

    @property
    def trusted_base(self) -> Base:
        """The newest base that contains no work of agents, or only work that the user approved."""
        return self.trusted or self.base

    @property
    def private(self) -> tuple[Path, ...]:
        """Folders that no toolchain may show in a sandbox."""
        return _private(self.repository.top, self.repository.home, self.environ.get("HOME"))

    @property
    def lenders(self) -> tuple[Path, ...]:
        """The objects that a sandbox may read: those that the base reaches, and no others."""
        return (self.base.objects,)

    @property
    def hidden(self) -> tuple[Path, ...]:
        """Paths that must not exist inside: if one does, the sandbox is broken."""
        return _list_hidden(self.repository.git, self.paths.ledger)

    def workspace_path(self, step: str, index: int) -> Path:
        """Return the path of one worker's workspace."""
        return self.paths.workspace(self.run, step, index)

    def output_log(self, session: str) -> OutputLog:
        """Make the log for the output of *session*."""
        return OutputLog(self.run, session, self.ledger.note, self.mask, self.flood)

    def policy(
        self,
        *,
        token: str,
        read: tuple[Path, ...],
        write: tuple[Path, ...],
        covers: tuple[Bind, ...] = (),
        layers: Layers | None = None,
        network: Network = Network.NONE,
        is_served: bool = False,
    ) -> Policy:
        """Make the policy of an agent's sandbox, with the base's objects to borrow."""
        return Policy(
            token=token,
            read=(*self.lenders, *read),
            write=write,
            covers=covers,
            layers=layers,
            network=network,
            hidden=self.hidden,
            uid=self.user.uid,
            gid=self.user.gid,
            is_guarded=self.is_guarded,
            is_served=is_served,
        )


# Called for each session with the same few paths: making a path takes longer than looking it up.
@functools.lru_cache(maxsize=64)
def _private(top: Path, state: Path, home: str | None) -> tuple[Path, ...]:
    return (top, state, *((Path(home),) if home else ()))


@functools.lru_cache(maxsize=64)
def _list_hidden(git: Path, ledger: Path) -> tuple[Path, ...]:
    return (git / "HEAD", git / "config", git / "objects", ledger)
