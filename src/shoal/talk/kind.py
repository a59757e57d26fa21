"""What the tools need of the run: a queue for each agent, and somebody who starts sessions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import ShoalError
from shoal.model.queue import QueuedTask


class CallRefused(ShoalError):
    """A call of an agent is refused; it is answered with the reason, which is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message on its way: what the recipient gets to read, and what is known of it."""

    message: str
    """Its name; empty for a message of a person."""
    sender: str
    text: str
    """As the recipient reads it, quoted, with its sender."""
    hops: int


class Postbox(Protocol):
    """The messages that an agent has not received yet."""

    @property
    def can_receive(self) -> bool:
        """Return whether the agent still receives messages."""

    @property
    def waiting(self) -> int:
        """Count the messages in it."""

    def put(self, letter: Letter) -> None:
        """Append a message."""

    async def take(self, most: int, seconds: float) -> Sequence[Letter]:
        """Remove up to *most* messages, and return them; wait up to *seconds* for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOrder:
    """What an agent wants another to do."""

    task: str
    agent: str = ""
    """A name of the parent's file; empty for one like the parent."""
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildState:
    """A session that an agent started."""

    name: str
    session: str
    status: str
    is_ended: bool
    task: str = ""
    branch: str = ""
    commit: str = ""
    files_changed: int = 0
    error: str = ""
    output: str = ""
    """The end of what it printed."""


@dataclass(frozen=True, slots=True)
class AddedTask:
    """A task of a queue, and whether it was not there before."""

    number: int
    is_new: bool


class Queues(Protocol):
    """The queues of the run."""

    async def add(self, queue: str, tasks: Sequence[QueuedTask], by: str, session: str) -> Sequence[AddedTask]:
        """Add *tasks* of an agent to *queue*; raises `CallRefused` if it takes them not."""


class Children(Protocol):
    """Starts the sessions of one agent, and knows how they are."""

    async def spawn(self, order: ChildOrder) -> str:
        """Start a session and return its name; raises `CallRefused` beyond what is granted."""

    def states(self) -> Sequence[ChildState]:
        """Return all of them, in order of their start."""

    async def wait(self, names: Sequence[str], seconds: float) -> None:
        """Return once all of *names* have ended, or after *seconds*."""

    async def diff(self, name: str) -> str:
        """Return what a child changed, as a patch; raises `CallRefused` if it has no work."""

    async def hand_over(self, name: str) -> str:
        """Put the work of a child where the parent's git can read it, and return the path."""
