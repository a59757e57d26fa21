"""The request for a run: what the user asked for, and a coordinator's settings."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.errors import BadInput, ExitCode, UnknownName
from shoal.git.closure import OnGather
from shoal.model.budget import SpendingLimit
from shoal.model.database import DatabaseSettings
from shoal.model.events import SessionDiscarded
from shoal.model.limits import WORK_BOUNDS, ResourceLimits, WorkBounds
from shoal.model.nodes import PLACEMENTS, NodeLike, read_nodes
from shoal.model.plan import CHECKPOINT_SECONDS, Plan, Stage
from shoal.model.store import StoreSettings
from shoal.model.task import AgentLike
from shoal.store.following import find_live
from shoal.store.ledger import Listener
from shoal.store.lock import is_locked, read_holder
from shoal.store.paths import StatePaths
from shoal.store.writer import OnBlocked


class StopSignal(asyncio.Event):
    """Ends a run early once it is set; *exit_code* is then the run's."""

    exit_code: int = ExitCode.INTERRUPTED


MODES = ("process", "thread")
SPELLINGS = {
    "max_concurrent_agents": "max_concurrent",
    "max_concurrent_workers": "max_concurrent",
    "on": "nodes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """How a run is resumed."""

    is_fresh: bool = False
    """Whether interrupted sessions start from their base, not from the files that they left."""
    compares: bool = False
    """Whether only results of tasks with the same content count."""
    epoch: int | None = None
    """How often the run had been resumed when it was read; if that has changed, another process owns it."""
    discard: tuple[SessionDiscarded, ...] = ()
    """Sessions whose results no longer count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Where and how to run, as the user asked."""

    folder: Path
    environ: Mapping[str, str] = field(repr=False)
    name: str = "run"
    run: str | None = None
    """The name of the run; `None` makes one of *name*, the date and a few random characters."""
    is_reopened: bool = False
    """Whether *run* has ended before and continues now."""
    is_patient: bool = False
    """Whether to try again to import work that could not be kept, however often that failed before."""
    resume: Resume | None = None
    """How *run* is resumed, and which results are kept."""
    is_listed: bool = True
    """Whether the repository is listed among those of this user; mirrors of others' are not."""
    is_recorded: bool = False
    """Whether what agents and their models say to each other is recorded."""
    replay: str | None = None
    """The recorded run whose models' answers this one gets."""
    base: str | None = None
    strategy: str = "auto"
    sandbox: str = "bubblewrap"
    cleanup: bool = True
    keep_database: bool = False
    database: DatabaseSettings = field(default_factory=DatabaseSettings)
    store: StoreSettings | None = None
    """The server of the ledger; `None` leaves it where it is."""
    checkpoint_seconds: float | None = CHECKPOINT_SECONDS
    """How often the files of an agent are saved while it works; `None` means never."""
    fleet: ResourceLimits | None = None
    grace: float = 5.0
    approve_all: bool = False
    """Whether every gate is approved as soon as it is reached."""
    bounds: WorkBounds = WORK_BOUNDS
    """Limits for Shoal's own work on agents' files."""
    secrets: tuple[Mapping[str, str], ...] = field(default=(), repr=False)
    """Values to mask besides those that the plan takes from the host, by name."""
    on_event: Listener | None = field(default=None, repr=False)
    """Called with every event of the run after its commit."""
    on_blocked: OnBlocked = field(default=lambda reason: None, repr=False)
    """Called, on the ledger's thread, with the reason why it cannot be written, and with "" when that is over."""
    on_gather: OnGather | None = field(default=None, repr=False)
    """Called when it takes long to collect the objects that agents may read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of all sessions of a coordinator, unless a task overrides them."""

    max_concurrent: int = 5
    isolation_strategy: str = "auto"
    execution_mode: str = "process"
    database_strategy: str = "per_agent"
    database: str | Mapping[str, str] | None = field(default=None, repr=False)
    """With `shared`, the address of a PostgreSQL server, or `{"from": NAME}`; by default Shoal starts one."""
    resource_limits: ResourceLimits | Mapping[str, object] | None = None
    fleet_limits: ResourceLimits | Mapping[str, object] | None = None
    auto_merge: bool = False
    cleanup_on_complete: bool = True
    keep_database: bool = False
    """Whether an agent's own database is stored with its results, as the artifact `database`."""
    checkpoint_seconds: float | None = CHECKPOINT_SECONDS
    """How often the files of an agent are saved while it works; `None` means never."""
    budget: object = None
    """What all agents together may spend on models: dollars, or a mapping with `usd` and `tokens`."""
    sandbox: str = "bubblewrap"
    nodes: str | Sequence[NodeLike] = ()
    """The nodes where its agents run, as for `--on`, or as in `runtime.nodes`; none means on this machine."""
    placement: str = "spread"
    network: str | None = None
    setup: object = None
    """How workspaces are set up, as in `runtime.setup` of a file; `None` uses the file's setting."""
    toolchains: Sequence[str] | None = None
    """Folders of programs that all agents see, as in `runtime.toolchains`."""
    base: str | None = None
    resume: str | None = None
    """The run of an earlier start of the same program: its finished tasks are not run again."""
    rewind: Mapping[str, int] = field(default_factory=dict)
    """Sessions of that run that start again from one of their checkpoints, with its number."""
    name: str = "coordinator"
    agent: AgentLike | None = None
    agents: Mapping[str, AgentLike] = field(default_factory=dict)
    personas: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    grace: float = 5.0

    def __post_init__(self) -> None:
        """Raise for invalid and unsupported settings."""
        if isinstance(self.max_concurrent, bool) or not isinstance(self.max_concurrent, int) or self.max_concurrent < 1:
            raise BadInput(f"max_concurrent must be a whole number of at least 1, not {self.max_concurrent!r:.40}")
        if self.execution_mode not in MODES:
            raise UnknownName("execution_mode", str(self.execution_mode), MODES)
        if self.budget is not None:
            SpendingLimit.read(self.budget)
        if self.placement not in PLACEMENTS:
            raise UnknownName("placement", self.placement, PLACEMENTS)
        read_nodes(self.nodes)
        if self.rewind and self.resume is None:
            raise BadInput("rewind names sessions of an earlier run; name that run with resume")
        self.databases  # noqa: B018 - raises for invalid ones

    def under(self, config: Mapping[str, Any] | None) -> "Settings":
        """Apply *config* on top; every key of seed 002's configuration is known."""
        known = tuple(self.__slots__)
        for key in config or {}:
            if SPELLINGS.get(key, key) not in known:
                raise UnknownName("key of the configuration", str(key), (*known, *SPELLINGS))
        return replace(self, **{SPELLINGS.get(key, key): value for key, value in (config or {}).items()})

    @property
    def databases(self) -> DatabaseSettings:
        """Where agents have their databases."""
        return DatabaseSettings.of(self.database_strategy, self.database)

    @property
    def limits(self) -> ResourceLimits | None:
        """The limits of each agent."""
        return _limits(self.resource_limits)

    def plan(self, *, steps: tuple[Stage, ...] = (), **parts: Any) -> Plan:  # noqa: ANN401 - its own fields
        """Make a plan of these settings; *parts* are its other fields."""
        own = {
            "name": self.name,
            "max_concurrent": self.max_concurrent,
            "budget": self.spending_limit,
            "sandbox": self.sandbox,
            "isolation_strategy": self.isolation_strategy,
            "keep_database": self.keep_database,
            "fleet_limits": self.fleet,
            "nodes": read_nodes(self.nodes),
            "placement": self.placement,
        }
        return Plan(**{**own, "steps": steps, **parts})

    def request(self, folder: Path) -> RunRequest:
        """Make the request for the run of a program in *folder*."""
        return RunRequest(
            folder=folder,
            environ=self.environ,
            name=self.name,
            base=self.base,
            strategy=self.isolation_strategy,
            sandbox=self.sandbox,
            cleanup=self.cleanup_on_complete,
            keep_database=self.keep_database,
            database=self.databases,
            checkpoint_seconds=self.checkpoint_seconds,
            fleet=self.fleet,
            grace=self.grace,
        )

    @property
    def spending_limit(self) -> SpendingLimit | None:
        """What all agents together may spend."""
        return None if self.budget is None else SpendingLimit.read(self.budget)

    @property
    def fleet(self) -> ResourceLimits | None:
        """The limits of all agents together."""
        return _limits(self.fleet_limits)


def _limits(given: ResourceLimits | Mapping[str, object] | None) -> ResourceLimits | None:
    return ResourceLimits.of(given) if isinstance(given, Mapping) else given


def assert_unowned(paths: StatePaths, run: str) -> None:
    """Refuse a run that another process goes on with, and name that process."""
    lock = paths.run_lock(run)
    if is_locked(lock):
        raise BadInput(f"{run} is still running ({read_holder(lock)}); `shoal stop {run}` stops it")
    assert_unowned_elsewhere(paths, run)


def assert_unowned_elsewhere(paths: StatePaths, run: str) -> None:
    """Refuse a run that another machine, which shares the ledger, goes on with."""
    if (host := find_live(paths).get(run)) is not None:
        raise BadInput(f"{run} is still running on {host}; `shoal stop {run}` there stops it")
