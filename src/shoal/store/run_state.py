"""The state of runs, steps and sessions, as folded from their events."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from shoal.model.claims import ClaimState
from shoal.model.events import StepEnded
from shoal.model.gate import GateAnswer, GateVerdict
from shoal.model.merge import Delivery, MergeReport, Overlap
from shoal.model.queue import QueueCount
from shoal.model.results import Purpose, WorkerResult
from shoal.model.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """The state of a session; *result* is set when it has ended."""

    session: str
    index: int
    branch: str
    base: str
    strategy: str
    workspace: str
    by_host: bool
    attempt: int
    status: Status
    prompt: str
    result: WorkerResult | None
    started_at: float
    seq: int
    """The number of the event that started it, which orders sessions across steps and runs."""
    visit: int = 1
    conversations: tuple[str, ...] = ()
    """Where its client keeps its conversations, below its home."""
    agent: str = ""
    adapter: str = ""
    takes_messages: bool = False
    purpose: Purpose = Purpose.WORK
    checkpoint: int = 0
    """The number of its last checkpoint."""
    is_discarded: bool = False
    """Whether its work is done again, so that its result no longer counts."""
    node: str = ""
    """The node that it runs on; empty for this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateState:
    """A gate's question, and the answer if there is one."""

    message: str
    opened_at: float
    seq: int
    """The number of the event that asked: an answer names it."""
    timeout: float | None = None
    on_timeout: GateVerdict = GateVerdict.REJECT
    answer: GateAnswer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """The state of a step, with its sessions in order of their start, including earlier attempts."""

    step: str
    workers: int = 0
    on_failure: str = ""
    status: Status = Status.RUNNING
    ended: StepEnded | None = None
    sessions: Mapping[str, SessionState] = field(default_factory=dict)
    gate: GateState | None = None
    seq: int = 0
    """The number of the event that began its last round, if it is in a loop."""

    @property
    def is_waiting(self) -> bool:
        """Return whether it waits for a person's answer."""
        return self.gate is not None and self.gate.answer is None and not self.status.is_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run, with its steps in order of their start."""

    run: str
    name: str = ""
    base: str = ""
    wall: str = ""
    workspace: str = ""
    limits: str = ""
    owner: int = 0
    host: str = ""
    epoch: int = 0
    """How often it was resumed."""
    status: Status = Status.RUNNING
    notes: tuple[str, ...] = ()
    waits_for: str = ""
    """Why no agent can start now: what the machine is short of."""
    started_at: float = 0.0
    duration_seconds: float = 0.0
    is_frozen: bool = False
    """Whether the agents of a paused run are frozen."""
    error: str | None = None
    exit_code: int | None = None
    stages: tuple[str, ...] = ()
    """The names of all stages in the order of the plan."""
    steps: Mapping[str, StepState] = field(default_factory=dict)
    overlaps: tuple[Overlap, ...] = ()
    claims: tuple[ClaimState, ...] = ()
    """What its agents said that they are about to change."""
    queues: tuple[QueueCount, ...] = ()
    merge: MergeReport | None = None
    """The result of the last merge of the run's work, or of the last undo."""
    deliveries: Mapping[str, Delivery] = field(default_factory=dict)
    """The last delivery into each branch of the user, by name."""

    @property
    def waiting(self) -> tuple[StepState, ...]:
        """Return the steps that wait for a person."""
        return () if self.status.is_ended else tuple(step for step in self.steps.values() if step.is_waiting)


@dataclass(frozen=True, slots=True)
class State:
    """All runs, in the order of their start."""

    runs: Mapping[str, RunState]
    find_runs: Callable[[str | None], Collection[str]] | None = field(default=None, compare=False)
    """Finds the runs with a session that a word may mean, so that not all have to be read."""

    def with_session(self, word: str | None) -> Iterable[RunState]:
        """Give the runs with a session that *word* may mean, or the latest session, in the order of their start."""
        if self.find_runs is None:
            return self.runs.values()
        found = self.find_runs(word)
        return (self.runs[name] for name in self.runs if name in found)
