"""What every kind of agent implements."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeGuard, runtime_checkable

from shoal.adapters.client import Client
from shoal.model.activity import Activity
from shoal.model.gateway import GatewayAccess
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.talk import TalkAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPaths:
    """The paths of a session, which are the same inside its sandbox and outside."""

    home: Path
    """Its private HOME; what an invocation lays there is there when it starts."""
    inputs: Path
    """Read-only: `prompt.md` and `system_prompt.md` lie there."""
    workspace: Path
    gateway: GatewayAccess | None = None
    """Where it finds its model, on `network: gateway`."""
    talk: TalkAccess | None = None
    """Where it finds the tools for talking to other agents, if it may."""
    conversation: str | None = None
    """The client's own name for the conversation that it is to continue; its files are in its home."""

    @property
    def prompt_file(self) -> Path:
        """The whole prompt, for a client that takes it from a file."""
        return self.inputs / "prompt.md"

    @property
    def system_prompt_file(self) -> Path:
        """The persona's system prompt, with the hint of seed 001; the file always exists, but may be empty."""
        return self.inputs / "system_prompt.md"


NOWHERE = SessionPaths(home=Path("/nowhere/home"), inputs=Path("/nowhere/input"), workspace=Path("/nowhere/workspace"))
"""For who asks what would be run before there is a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """How an agent is started; *needs* are host paths that must be readable in its sandbox."""

    argv: tuple[str, ...]
    stdin: bytes = field(repr=False)
    needs: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of its own; what the document says about the same name counts more."""
    home: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Files to lay into its private home, by their paths from its top."""
    is_live: bool = False
    """Whether its stdin stays open, because it is spoken to while it runs."""


class Reader(Protocol):
    """Reads the output of one client; each session has its own."""

    def read(self, line: str) -> Iterable[Activity]:
        """Turn one line of stdout into activities; a line that is not an event of the client is `SAID`."""

    @property
    def is_done(self) -> bool:
        """Return whether the client has reported its end: what still runs of it may then be ended."""

    @property
    def usage(self) -> Mapping[str, float]:
        """Its usage: `input_tokens`, `output_tokens` and, if the client knows it, `cost_usd`."""

    @property
    def session(self) -> str | None:
        """The client's id of the conversation, by which it can resume it."""

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Return in one line why it failed, or `None` if it did its task.

        An exit code alone is never believed, in either way; *errors* is the end of stderr.
        """


class TurnReader(Reader, Protocol):
    """A reader of a client that takes messages between its turns."""

    @property
    def is_between_turns(self) -> bool:
        """Return whether the client has ended a turn, and waits for what comes next."""

    def begin_turn(self) -> None:
        """Note that the client was given a message, and that its next turn begins."""


@runtime_checkable
class Conversational(Protocol):
    """An adapter of agents that take messages on an open standard input."""

    def takes_messages(self, task: ResolvedTask) -> bool:
        """Return whether the agent takes messages while it works on *task*."""

    def message(self, text: str) -> bytes:
        """Format a message as the agent reads it."""

    def turn_reader(self) -> TurnReader:
        """Return a new reader of one session's output."""


class Adapter(Protocol):
    """One kind of agent."""

    @property
    def name(self) -> str:
        """Return its name in pipeline files."""

    @property
    def default_network(self) -> Network:
        """Return its network by default."""

    @property
    def client(self) -> Client | None:
        """Return the client that it drives, if it drives one."""

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Turn *task* into the command that works on it.

        A client that knows rules for its tools is given those of `task.permitted`; all others find them, like the rest
        of the permissions, in SHOAL_PERMISSIONS_FILE. The sandbox enforces what a rule does not. A rule that a client
        cannot be held to is refused with `Unavailable`.
        """

    def reader(self) -> Reader | None:
        """Return a new reader of one session's output; `None` if that is plain text."""


def is_conversational(adapter: Adapter) -> TypeGuard[Conversational]:
    """Return whether *adapter* is `Conversational`; asked for each session, which the protocol makes slow."""
    return _is_conversational_kind(type(adapter))


@functools.cache
def _is_conversational_kind(kind: type) -> bool:
    return issubclass(kind, Conversational)
