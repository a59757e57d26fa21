"""What agents of a run may say to each other and start, and the events of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Self

from shoal.errors import BadInput, UnknownName

TALK_PORT = 9919
"""Of the tools, in the network of a sandbox, beside the gateway's ports."""
MOST_CHILDREN = 1000
DEEPEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkGrant:
    """What an agent may do with other agents of its run; nothing of it widens its sandbox."""

    spawn: int = 0
    """How many sessions it and everything below it may start, all together."""
    depth: int = 1
    """How many generations there may be below it."""
    message: bool = False
    notes: bool = False
    queue: str = ""
    """The queue of tasks that it may add to."""
    agents: tuple[str, ...] = ()
    """The agents that it may start, besides those like itself."""

    def __post_init__(self) -> None:
        """Raise `BadInput` for what cannot be granted."""
        for name, most in (("spawn", MOST_CHILDREN), ("depth", DEEPEST)):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= most:
                raise BadInput(f"`talk.{name}` must be a whole number from 0 to {most}, not {value!r:.40}")
        if not isinstance(self.queue, str):
            raise BadInput(f"`talk.queue` must be the name of a queue, not {self.queue!r:.40}")
        for name in ("message", "notes"):
            if type(value := getattr(self, name)) is not bool:
                raise BadInput(f"`talk.{name}` must be true or false, not {value!r:.40}")
        if type(self.agents) is not tuple or not all(isinstance(name, str) for name in self.agents):
            raise BadInput(f"`talk.agents` must be a list of names, not {self.agents!r:.40}")

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Self:
        """Read a grant from a mapping."""
        known = [parameter.name for parameter in fields(cls)]
        for key in given:
            if key not in known:
                raise UnknownName("key of `talk`", str(key), known)
        if isinstance(agents := given.get("agents"), list):
            given = {**given, "agents": tuple(agents)}
        return cls(**given)  # type: ignore[arg-type]  # checked as it is made

    @property
    def is_nothing(self) -> bool:
        """Return whether it allows nothing."""
        return not (self.may_spawn or self.message or self.notes or self.queue)

    @property
    def may_spawn(self) -> bool:
        """Return whether it allows to start sessions."""
        return self.spawn > 0 and self.depth > 0

    def for_child(self) -> Self:
        """Return what a child may do: the same, with one generation less; the number is shared."""
        return replace(self, depth=max(0, self.depth - 1))


def helper_name(agent: str) -> str:
    """Name the description of an agent that others may start, as reviewers are named."""
    return f"helper:{agent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkAccess:
    """What an agent in a sandbox needs to reach the tools."""

    url: str
    token: str = field(repr=False)
    program: str
    """A command line program that calls them, which also speaks MCP on its standard input and output."""


class TalkKind(StrEnum):
    """What a message is for."""

    SEND = "send"
    BROADCAST = "broadcast"
    ASK = "ask"
    REPLY = "reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSent:
    """An agent sent a message to another; *session* is the sender's."""

    run: str
    session: str
    message: str
    """Its name in the run: the sender and a number, which orders the messages of each pair."""
    sender: str
    recipient: str
    text: str
    kind: TalkKind = TalkKind.SEND
    answers: str = ""
    """The message that it replies to."""
    hops: int = 1
    """How many messages led to it, each as the answer to the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesTaken:
    """The agent of *session* received these messages, by its own call or between two of its turns."""

    run: str
    session: str
    recipient: str
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpawned:
    """An agent started a session of its own."""

    run: str
    session: str
    """The parent's."""
    parent: str
    child: str
    task: str = ""
    """The whole task, without secrets; a resumed run goes on with it."""
    agent: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkRefused:
    """A call of an agent was refused; *tool* is empty if it was refused before it named one."""

    run: str
    session: str
    tool: str
    why: str
    times: int = 1
    """How often in a row, because not every one of a flood is recorded."""


TalkEvent = MessageSent | MessagesTaken | ChildSpawned | TalkRefused
