"""What a coordinator and a node say to each other; `PROTOCOL` changes with the meaning of any message."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from shoal.executors.wire.frames import ProtocolError
from shoal.model.nodes import NodeLoad, NodeOffer
from shoal.store.codec import decode_value, encode_value

PROTOCOL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHello:
    """The first message of each side; the coordinator's names the node and says how long its lease is."""

    protocol: int
    version: str
    node: str = ""
    lease_seconds: float = 0.0
    offer: NodeOffer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life; a node's has its load."""

    load: NodeLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMirror:
    """Ask for the mirror of a repository, which is made if it is missing; answered by `MirrorOpened`."""

    id: int
    key: str
    """What identifies the repository, in hexadecimal digits."""
    object_format: str
    branch: str = ""
    """The branch that is checked out there."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The configuration that a checkout depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOpened:
    """The mirror is ready, and has these commits with all that they reach."""

    re: int
    commits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TakePack:
    """A pack follows on *channel*, after which the mirror has *commit*; answered by `Done`."""

    id: int
    channel: int
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNodeRun:
    """Open a run in the mirror; its plan follows on *channel*; answered by `RunOpened`."""

    id: int
    channel: int
    run: str
    commit: str
    author: str
    email: str
    grace: float
    date: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOpened:
    """The run is open there, with what holds its agents."""

    re: int
    sandbox: str
    workspace: str
    limits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSession:
    """Run a session; its order and secrets follow on *channel*. Ends with `SessionDone`, or `Refusal` for *id*."""

    id: int
    channel: int
    session: str
    fence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSession:
    """Stop the agent of a session and keep its work; *by* names the person who wants that, if it is for one."""

    session: str
    fence: str
    by: str | None = None
    is_at_once: bool = False
    """Whether to end it without keeping its work now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeSession:
    """Freeze or thaw the agent of a session."""

    session: str
    fence: str
    is_frozen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TellAgent:
    """A person's message to the agent of a session."""

    session: str
    fence: str
    text: str
    by: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """Keep the files of a session as they are now; *request* names who wants to see them."""

    session: str
    fence: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHappened:
    """An event of a session, as it would be recorded."""

    session: str
    fence: str
    kind: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDone:
    """A session ended; on *channel* follow its result, then the pack of its work, then its artifacts."""

    session: str
    fence: str
    channel: int
    result_bytes: int
    pack_bytes: int = 0
    tip: str = ""
    """The commit of its branch; empty if nothing was changed."""
    extras: tuple[str, ...] = ()
    """The agent's other branches and stashes."""
    artifacts: Mapping[str, int] = field(default_factory=dict)
    """The sizes of its artifacts, by label, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTaken:
    """The coordinator has the work of a session, or wants none of it: the node may forget it."""

    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListWork:
    """Ask which sessions ended on the node without a coordinator; answered by `WorkListed`."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftWork:
    """The work of a session that nobody has taken."""

    session: str
    run: str
    branch: str
    base: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkListed:
    """What nobody has taken."""

    re: int
    work: tuple[LeftWork, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchWork:
    """Ask for the pack of the work of such a session; answered by `WorkSent`."""

    id: int
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSent:
    """The pack follows on *channel*."""

    re: int
    channel: int
    pack_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """Ask for the gateway to models for a session; *key* tells several of them apart; answered by `ModelOpened`."""

    id: int
    session: str
    fence: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOpened:
    """The gateway is open: *order* says what for, without keys, and *ports* are to be listened on."""

    re: int
    order: str
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSaid:
    """What the gateway says about a session; *message* is JSON."""

    session: str
    fence: str
    key: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConnected:
    """A program in the sandbox connected to *port*; its bytes are on *channel*."""

    session: str
    fence: str
    key: str
    port: int
    channel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseModel:
    """The session needs its gateway no more; answered by `Done`, after all that was said about it."""

    id: int
    session: str
    fence: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is done."""

    re: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefusal:
    """It cannot be done, for the reason that an error would give."""

    re: int
    message: str
    what: str = ""
    remedy: str = ""
    code: int = 3
    """The exit code of that error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The receiver of a channel takes so many more bytes."""

    channel: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The channel is broken off, in both directions."""

    channel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """Nothing more is wanted: the node ends."""


Message = (
    NodeHello
    | Beat
    | OpenMirror
    | MirrorOpened
    | TakePack
    | OpenNodeRun
    | RunOpened
    | StartSession
    | StopSession
    | FreezeSession
    | TellAgent
    | TakeSnapshot
    | SessionHappened
    | SessionDone
    | WorkTaken
    | ListWork
    | WorkListed
    | FetchWork
    | WorkSent
    | OpenModel
    | ModelOpened
    | ModelSaid
    | ModelConnected
    | CloseModel
    | Done
    | NodeRefusal
    | Credit
    | Reset
    | Goodbye
)
Request = OpenMirror | TakePack | OpenNodeRun | StartSession | ListWork | FetchWork | OpenModel | CloseModel
KINDS: Mapping[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}
REPLIES = (MirrorOpened, RunOpened, WorkListed, WorkSent, ModelOpened, Done, NodeRefusal)
ANNOUNCING = (TakePack, OpenNodeRun, StartSession, SessionDone, WorkSent, ModelConnected)
"""The messages that open a channel."""
Reply = MirrorOpened | RunOpened | WorkListed | WorkSent | ModelOpened | Done | NodeRefusal


def encode_message(message: Message) -> bytes:
    """Encode *message* as the body of a frame."""
    fields = {} if isinstance(message, Goodbye) else encode_value(message)
    return json.dumps([type(message).__name__, fields], separators=(",", ":")).encode()


def decode_message(body: bytes) -> Message:
    """Decode what anybody may have sent; raise `ProtocolError` for what is no message."""
    try:
        name, fields = json.loads(body)
        return decode_value(KINDS[name], fields)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"a message of the node protocol cannot be read: {error}"[:300]) from None
