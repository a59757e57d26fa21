"""The plan of a run: stages with dependencies, and how to run them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.model.artifact import Artifact, Injection
from shoal.model.budget import SpendingLimit
from shoal.model.conflict_rule import ConflictRule, Merging
from shoal.model.contract import AgentReview, CommandContract, Contract
from shoal.model.database import DatabaseSettings
from shoal.model.executable_files import ExecutableRules
from shoal.model.gate import Gate
from shoal.model.gateway import Upstream
from shoal.model.limits import ResourceLimits
from shoal.model.matrix import Matrix
from shoal.model.nodes import NodeAddress
from shoal.model.queue import QueueSpec
from shoal.model.resolved_task import ResolvedTask
from shoal.model.select import Select
from shoal.model.setup import ToolFolder
from shoal.model.status import Rule
from shoal.model.store import StoreSettings
from shoal.model.talk import helper_name
from shoal.model.task import Task

CHECKPOINT_SECONDS = 300.0
END, NEEDS_PERSON, CONFLICT = "end", "needs_person", "conflict"
NOTIFY_EVENTS = (END, NEEDS_PERSON, CONFLICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """How to notify a person about a run, and of what."""

    on: tuple[str, ...] = NOTIFY_EVENTS
    has_bell: bool = False
    has_desktop: bool = False
    command: tuple[str, ...] = ()
    apprise: tuple[str, ...] = ()
    """The names of variables with addresses: these are secrets."""

    @property
    def is_asked(self) -> bool:
        """Return whether anybody is to hear anything."""
        return bool(self.on) and bool(self.has_bell or self.has_desktop or self.command or self.apprise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Whether and where spans and metrics are sent, and with which texts."""

    is_on: bool = True
    endpoint: str = ""
    has_prompts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One worker's differences; `None` means none, *prompt* is added to the common one."""

    agent: str | None = None
    """The name of the agent that does the work instead of the step's."""
    model: str | None = None
    temperature: float | None = None
    prompt: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    task: ResolvedTask | None = None
    """The step's task as another agent does it; `None` means the step's own agent."""


def variation(vary: Sequence[Variation], index: int) -> Variation:
    """Return the worker's variation; they are assigned in turn and repeated."""
    return vary[index % len(vary)] if vary else Variation()


INNER = "_"
"""Separates the name of a stage from that of a nested one; no name contains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A stage that is repeated, each round on the work of the one before, until a condition holds."""

    until: str
    most: int
    """The maximum number of rounds."""
    must_hold: bool = True
    """Whether the stage fails if *until* does not hold after the last round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all kinds of stages have in common: when they start, and from what."""

    name: str
    needs: tuple[str, ...] = ()
    """Stages that must succeed first; it starts from their merged work."""
    base: str | None = None
    """What it starts from instead of the run's base: a name that git knows."""
    is_stacked: bool = True
    """Whether it starts from the work of its needs."""
    on_conflict: ConflictRule = ConflictRule.REPORT
    """What to do if the work of its needs conflicts: fail, or let a side win, in the order of the needs."""
    is_optional: bool = False
    """Whether the run, and its dependants, continue if it fails."""
    is_template: bool = False
    """Whether its texts have placeholders to fill in when it starts."""
    condition: str | None = None
    """A condition for running it; otherwise it is skipped, and its dependants continue."""
    loop: Loop | None = None

    @property
    def has_texts(self) -> bool:
        """Return whether its texts can use results of other stages."""
        return self.condition is not None or self.loop is not None or self.is_template


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Stage):
    """A task for a number of identical workers, or for one worker per cell of a matrix."""

    task: ResolvedTask
    label: str = ""
    """What its sessions and branches are called after, if not its name."""
    workers: int = 1
    on_failure: str = "fail_fast"
    wish: Task | None = None
    """The original request, if its inputs may name its needs."""
    is_command: bool = False
    """Whether it is a plain command, whose words have placeholders, too."""
    artifacts: tuple[Artifact, ...] = ()
    """Files that each worker has to leave."""
    injections: tuple[Injection, ...] | None = None
    """The artifacts that it gets; `None` means all of its needs."""
    contracts: tuple[Contract, ...] = ()
    select: Select | None = None
    trial: CommandContract | None = None
    """A command that the selection runs on the work of each worker."""
    vary: tuple[Variation, ...] = ()
    matrix: Matrix | None = None
    queue: str = ""
    """The queue that its workers take their tasks from, each for one task."""
    at_once: int = 1
    """How many of them work at a time, with a queue."""
    sandbox: str | None = None
    """Its sandbox, if not the run's."""
    isolation_strategy: str | None = None

    @property
    def tasks(self) -> tuple[ResolvedTask, ...]:
        """Its task as each of its agents does it: more than one if `vary` names other agents."""
        others = tuple(own.task for own in self.vary if own.task is not None)
        return others if others and len(others) == len(self.vary) else (self.task, *others)

    def change_tasks(self, change: Callable[[ResolvedTask], ResolvedTask]) -> "Step":
        """Return the step with *change* applied to its task, for every agent."""
        vary = tuple(replace(own, task=None if own.task is None else change(own.task)) for own in self.vary)
        return replace(self, task=change(self.task), vary=vary)

    @property
    def reviewers(self) -> tuple[str, ...]:
        """Return its further agents: for contracts, for selection, and those that its own may start."""
        reviews = [contract.reviewer for contract in self.contracts if isinstance(contract, AgentReview)]
        judge = self.select.judge if self.select else None
        helpers = map(helper_name, self.task.talk.agents if self.task.talk else ())
        return (*reviews, *(() if judge is None else (judge,)), *helpers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval(Stage):
    """A stage without an agent: it waits for a person."""

    gate: Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineGroup(Stage):
    """A nested pipeline; its stages are named after it, like `outer_inner`."""

    stages: tuple[Stage, ...]
    input: Mapping[str, str] | str | None = None
    """The `input` of its texts, with placeholders; `None` means that of the outer pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLimit:
    """How long the history of ended runs is kept, and for how many runs; `None` means for ever."""

    age_seconds: float | None = None
    runs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run: its stages, and how to run them."""

    name: str
    steps: tuple[Stage, ...]
    max_concurrent: int = 10
    isolation_strategy: str = "auto"
    sandbox: str = "bubblewrap"
    cleanup_on_complete: bool = True
    keep_database: bool = False
    database: DatabaseSettings = field(default_factory=DatabaseSettings)
    """Where agents have their databases."""
    store: StoreSettings | None = None
    """The server of the ledger; `None` leaves it where it is."""
    checkpoint_seconds: float | None = CHECKPOINT_SECONDS
    """How often the files of an agent are saved while it works; `None` means never."""
    history: HistoryLimit = HistoryLimit()
    """What of the history of ended runs is kept."""
    notify: Notify = field(default_factory=Notify)
    telemetry: Telemetry | None = None
    """`None` leaves it to the environment."""
    fleet_limits: ResourceLimits | None = None
    toolchains: tuple[ToolFolder, ...] = ()
    """Folders of programs that every sandbox of the run shows."""
    executable: ExecutableRules = field(default_factory=ExecutableRules)
    """The user's changes to the rules for files that run code."""
    rule: Rule | None = None
    """The rule for all workers together; `None` means that each step uses its own `on_failure`."""
    merging: Merging | None = None
    """How to merge the work at the end; `None` leaves that to a person."""
    input: Mapping[str, str] | str | None = None
    """The value of `{{ input }}`."""
    upstreams: tuple[Upstream, ...] = ()
    """The models that the user's file names, without the keys that come from the environment."""
    budget: SpendingLimit | None = None
    """What all its agents together may spend on models."""
    nodes: tuple[NodeAddress, ...] = ()
    """Where its sessions run; none means on this machine."""
    placement: str = "spread"
    """How they are placed: over all nodes evenly (`spread`), or on as few as possible (`pack`)."""
    notes: tuple[str, ...] = ()
    reviewers: Mapping[str, ResolvedTask] = field(default_factory=dict)
    """The reviewers by the names that contracts and selections use."""
    queues: tuple[QueueSpec, ...] = ()
    """The queues that its steps take tasks from."""

    @property
    def working(self) -> tuple[Step, ...]:
        """All steps with work for agents, including nested ones."""
        return tuple(stage for stage in walk_stages(self.steps) if isinstance(stage, Step))

    @property
    def assignments(self) -> tuple[ResolvedTask, ...]:
        """All work for agents, including reviews."""
        return (*(task for step in self.working for task in step.tasks), *self.reviewers.values())


def local_name(name: str) -> str:
    """Return the name of a stage inside its own pipeline."""
    return name.rpartition(INNER)[2]


def walk_stages(stages: Sequence[Stage]) -> Iterator[Stage]:
    """Yield *stages* and their nested ones."""
    for stage in stages:
        yield stage
        if isinstance(stage, PipelineGroup):
            yield from walk_stages(stage.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """An agent's task with its artifacts, contracts and reviewers."""

    task: ResolvedTask
    artifacts: tuple[Artifact, ...] = ()
    contracts: tuple[Contract, ...] = ()
    reviewers: Mapping[str, ResolvedTask] = field(default_factory=dict)
