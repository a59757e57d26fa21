"""Events: small frozen facts. All state of a run is computed from them by `store.fold`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.activity import Act
from shoal.model.gate import GateVerdict
from shoal.model.gateway import ModelAnswered
from shoal.model.merge import DeliveryIntended, DeliveryRecorded, MergeEnded, MergeIntended, MergeRecorded, Overlap
from shoal.model.nodes import NodeEvent
from shoal.model.resources import ResourceSample
from shoal.model.results import Purpose, WorkerResult
from shoal.model.select import RankedRow
from shoal.model.setup import SetupRecord
from shoal.model.shared_events import SharedEvent
from shoal.model.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run started; *owner* is the process that holds its lock."""

    run: str
    name: str
    base: str
    wall: str
    workspace: str
    owner: int
    notes: tuple[str, ...] = ()
    limits: str = ""
    stages: tuple[str, ...] = ()
    """The names of all stages in the order of the plan, including nested ones."""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlanned:
    """The plan of a run as it was started, before its first agent; large, so read only to resume the run."""

    run: str
    plan: str
    """The plan as JSON; empty if another process could not decode it."""
    unrecorded: str = ""
    """Why the plan is not here."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The command-line options that apply to the run besides its plan."""
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
    """The result of a session no longer counts, because its work is done again."""

    run: str
    step: str
    session: str
    checkpoint: int = 0
    """The checkpoint from which its work starts again; 0 if it starts from its base."""
    commit: str = ""
    """The commit of that checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """A step started with this many workers."""

    run: str
    step: str
    workers: int
    on_failure: str
    is_again: bool = False
    """Whether an enclosing loop started the step again; earlier events belong to earlier rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted:
    """A session is about to be opened, on a *node* or here; written before anything of it exists."""

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
    """Whether the host mounted the overlay; its layers must then be read through the host."""
    prompt: str = ""
    """The start of its prompt, on one line and without secrets."""
    setup: SetupRecord | None = None
    """The set-up of its workspace, if it has one."""
    visit: int = 1
    """The number of this visit of its step, if that is in a loop."""
    origin: str = ""
    """The commit that its work is measured from, if it continues the files of an interrupted session."""
    conversations: tuple[str, ...] = ()
    """Where its client keeps its conversations, below its home."""
    content: str = ""
    """A digest of its agent and prompt."""
    agent: str = ""
    adapter: str = ""
    takes_messages: bool = False
    """Whether its agent takes messages between its turns."""
    purpose: Purpose = Purpose.WORK
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted:
    """The agent's process is running in its sandbox."""

    run: str
    session: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHeard:
    """What a client has reported about itself so far: the id of its conversation, and its usage."""

    run: str
    session: str
    client_session: str
    usage: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesSampled:
    """What a session uses of the machine; recorded every second at first, and less often in time."""

    run: str
    session: str
    sample: ResourceSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Consecutive lines of the agent's output; *dropped* counts bytes in or before them that were not kept."""

    run: str
    session: str
    stream: str
    text: str
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentActed:
    """A client reported an activity; the fields are those of `Activity`."""

    run: str
    session: str
    act: Act
    text: str = ""
    tool: str = ""
    call: str = ""
    ok: bool = True
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessaged:
    """A message of *by* was delivered to the agent between two turns, or never will be."""

    run: str
    session: str
    request: str
    by: str
    text: str
    is_delivered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept:
    """The files of a running agent were saved on a ref of ours."""

    run: str
    step: str
    session: str
    number: int
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotKept:
    """The files of a running agent were saved for a person; *commit* is empty if they could not be."""

    run: str
    session: str
    request: str
    commit: str = ""
    secrets: tuple[str, ...] = ()
    """Files that contain a secret."""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnded:
    """The agent's main process ended."""

    run: str
    session: str
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The session's work was imported into a branch."""

    run: str
    session: str
    branch: str
    commit: str
    files_changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """A session ended; only what the result names is left on disk."""

    run: str
    step: str
    session: str
    result: WorkerResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """A step ended; the other fields are those of its result."""

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
    """Whether it was cancelled, so that resuming the run continues it."""
    unstarted: tuple[WorkerResult, ...] = ()
    """Results of workers that never started and so have no session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """A run ended; *error* says why it could not finish, unless an agent failed."""

    run: str
    status: Status
    duration_seconds: float
    error: str | None = None
    exit_code: int | None = None
    """The exit code of the command that ran it; `None` where no command did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """No agent is started for now because of *reason*; an empty reason ends the wait."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionDecided:
    """*rule* granted or denied *subject* to a session, at its start or on request."""

    run: str
    session: str
    subject: str
    rule: str
    allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOpened:
    """A gate asks a person; without an answer within *timeout* seconds, *on_timeout* is the answer."""

    run: str
    step: str
    message: str
    timeout: float | None = None
    on_timeout: GateVerdict = GateVerdict.REJECT
    visit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswered:
    """A gate was answered, through *request* if a person left one; *by* is empty if the gate timed out."""

    run: str
    step: str
    answer: GateVerdict
    by: str = ""
    message: str = ""
    request: str = ""
    visit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestIgnored:
    """A file in the folder of requests was not a valid request."""

    run: str
    file: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTaken:
    """The run took a request of another process or of its own program, or says why it cannot do it."""

    run: str
    request: str
    kind: str
    by: str
    session: str = ""
    """The only session that is meant; empty for the whole run."""
    is_now: bool = False
    is_frozen: bool = False
    """Whether a pause also freezes running agents."""
    value: int = 0
    """How many agents may run at once, if that is requested."""
    message: str = ""
    """The message to the agent of *session*."""
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSeen:
    """Two ended sessions changed the same files; recorded once per pair."""

    run: str
    overlap: Overlap
    is_last: bool = False
    """Whether this is the last overlap recorded; the preview of a merge shows the rest."""


Event = (
    RunStarted
    | RunPlanned
    | RunResumed
    | SessionDiscarded
    | StepStarted
    | SessionStarted
    | AgentStarted
    | ClientHeard
    | ModelAnswered
    | ResourcesSampled
    | Output
    | AgentActed
    | AgentMessaged
    | CheckpointKept
    | SnapshotKept
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
    | RequestTaken
    | MergeIntended
    | MergeRecorded
    | DeliveryIntended
    | DeliveryRecorded
    | OverlapSeen
    | MergeEnded
    | SharedEvent
    | NodeEvent
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with its number and time (seconds since the epoch); order is by number, never by time."""

    seq: int
    at: float
    event: Event
