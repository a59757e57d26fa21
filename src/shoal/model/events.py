"""Facts: small frozen events, of which all state is a fold."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.activity import Act
from shoal.model.gate import GateVerdict
from shoal.model.merge import DeliveryIntended, DeliveryRecorded, MergeIntended, MergeRecorded, MergeReport
from shoal.model.overlap import Overlap
from shoal.model.results import WorkerResult
from shoal.model.select import RankedRow
from shoal.model.setup import SetupRecord
from shoal.model.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run began; *owner* is the process that holds its lock."""

    run: str
    name: str
    base: str
    wall: str
    workspace: str
    owner: int
    notes: tuple[str, ...] = ()
    limits: str = ""
    stages: tuple[str, ...] = ()
    """The names of all stages in the order of the plan, those inside of groups too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlanned:
    """The plan of a run as it was started, before its first agent; large, so read only to resume the run."""

    run: str
    plan: str
    """The plan as JSON; empty where another process cannot read it back."""
    unrecorded: str = ""
    """Why the plan is not here."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What of the command line holds for the run beside its plan."""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """Another process continues a run that had stopped."""

    run: str
    owner: int
    host: str = ""
    epoch: int = 1
    """How often the run has been resumed, this time included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDiscarded:
    """What a session came to does not count any more, because its work is done again."""

    run: str
    step: str
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """A step began, with so many workers."""

    run: str
    step: str
    workers: int
    on_failure: str
    is_again: bool = False
    """Whether it is a further round of a loop around it: what was before is of the rounds before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted:
    """The intent to open a session, written before anything of it exists."""

    run: str
    step: str
    session: str
    index: int
    branch: str
    base: str
    strategy: str
    workspace: str
    attempt: int = 1
    by_host: bool = False
    """Whether the host mounted its layers, which are then read only so."""
    prompt: str = ""
    """How its prompt begins, on one line and without secrets."""
    setup: SetupRecord | None = None
    """How its workspace is made ready; `None` where there is no set-up."""
    visit: int = 1
    """The how-manieth time its step was entered, where that is in a loop."""
    origin: str = ""
    """The commit that its work counts from, where it continues the files of an interrupted session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted:
    """The agent's process runs behind its wall."""

    run: str
    session: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Lines that the agent wrote at once; *dropped* bytes of them or before them were not kept."""

    run: str
    session: str
    stream: str
    text: str
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentActed:
    """A client told what it does; the fields are as in `Activity`."""

    run: str
    session: str
    act: Act
    text: str = ""
    tool: str = ""
    call: str = ""
    ok: bool = True
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnded:
    """The agent's main process ended."""

    run: str
    session: str
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A branch now holds the session's work."""

    run: str
    session: str
    branch: str
    commit: str
    files_changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """A session ended; nothing of it is on disk but what the result names."""

    run: str
    step: str
    session: str
    result: WorkerResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """A step ended; what is said of it beside its status is as in its result."""

    run: str
    step: str
    status: Status
    error: str | None = None
    selected: int | None = None
    ranking: tuple[RankedRow, ...] = ()
    rounds: int = 1
    notes: tuple[str, ...] = ()
    artifacts: Mapping[str, str] = field(default_factory=dict)
    visit: int = 1
    is_stopped: bool = False
    """Whether it was stopped from outside, so that resuming the run continues it."""
    unstarted: tuple[WorkerResult, ...] = ()
    """What is told of workers that never began: they have no session that would tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """A run ended."""

    run: str
    status: Status
    duration_seconds: float
    error: str | None = None
    """Why it could not be finished, where that is not the failure of an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """No agent is started for now, because of *reason*; an empty one says that this is over."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionDecided:
    """A session was granted or denied *subject* by *rule*: when it started, or because somebody asked."""

    run: str
    session: str
    subject: str
    rule: str
    allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOpened:
    """A person is asked; without an answer within *timeout* seconds, *on_timeout* is taken for one."""

    run: str
    step: str
    message: str
    timeout: float | None = None
    on_timeout: GateVerdict = GateVerdict.REJECT
    visit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswered:
    """A gate was answered, by *request* where somebody left one; nobody is named where its time was over."""

    run: str
    step: str
    answer: GateVerdict
    by: str = ""
    message: str = ""
    request: str = ""
    visit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestIgnored:
    """A file among the requests to a run is none."""

    run: str
    file: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSeen:
    """Two sessions that have ended changed the same files; told once for each pair."""

    run: str
    overlap: Overlap
    is_last: bool = False
    """Whether so many were told that the rest is left to the preview of a merge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeEnded:
    """A merge, or the taking out of work, came to its end; told where that is another than before."""

    run: str
    report: MergeReport


Event = (
    RunStarted
    | RunPlanned
    | RunResumed
    | SessionDiscarded
    | StepStarted
    | SessionStarted
    | AgentStarted
    | Output
    | AgentActed
    | AgentEnded
    | Imported
    | SessionEnded
    | StepEnded
    | RunEnded
    | Waiting
    | PermissionDecided
    | GateOpened
    | GateAnswered
    | RequestIgnored
    | MergeIntended
    | MergeRecorded
    | DeliveryIntended
    | DeliveryRecorded
    | OverlapSeen
    | MergeEnded
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with its number and its time (seconds since the epoch; order is by number, never by time)."""

    seq: int
    at: float
    event: Event
