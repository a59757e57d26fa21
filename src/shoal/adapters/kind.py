"""What every kind of agent offers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from shoal.adapters.client import Client
from shoal.model.activity import Activity
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPaths:
    """Where an agent will stand; the paths are the same inside its wall and outside."""

    home: Path
    """Its private HOME; what an invocation lays there is there when it starts."""
    inputs: Path
    """Read-only: `prompt.md` and `system_prompt.md` lie there."""
    workspace: Path
    conversation: str | None = None
    """The client's own name for the conversation that it is to continue; its files are in its home."""

    @property
    def prompt_file(self) -> Path:
        """The whole prompt, for a client that takes it from a file."""
        return self.inputs / "prompt.md"

    @property
    def system_prompt_file(self) -> Path:
        """The persona's words, with the hint of seed 001; there, and maybe empty."""
        return self.inputs / "system_prompt.md"


NOWHERE = SessionPaths(home=Path("/nowhere/home"), inputs=Path("/nowhere/input"), workspace=Path("/nowhere/workspace"))
"""For who asks what would be run before there is a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """How an agent is started; *needs* are paths of the host that must be readable behind the wall."""

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
    """Reads what one client says; made anew for each session, and its only state is what it has read."""

    def read(self, line: str) -> Iterable[Activity]:
        """Turn one line of stdout into what it tells; a line that is none of the client's own events is `SAID`."""

    @property
    def is_done(self) -> bool:
        """Return whether the client has told its own end: what is still running of it then may be ended."""

    @property
    def usage(self) -> Mapping[str, float]:
        """What it spent: `input_tokens`, `output_tokens` and, where the client knows it, `cost_usd`."""

    @property
    def session(self) -> str | None:
        """The client's own name for the conversation, by which it can go on with it."""

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Say in one line why it failed, or nothing where it did what it was asked.

        An exit code alone is never believed, in either way; *errors* is the end of stderr.
        """


class TurnReader(Reader, Protocol):
    """A reader of a client that works in turns, between which it takes messages."""

    @property
    def is_between_turns(self) -> bool:
        """Return whether the client has ended a turn, and waits for what comes next."""

    def begin_turn(self) -> None:
        """Note that the client was given a message, and that its next turn begins."""


@runtime_checkable
class Conversational(Protocol):
    """An adapter of agents that are spoken to on a standard input that stays open; their invocation is live."""

    def takes_messages(self, task: ResolvedTask) -> bool:
        """Return whether the agent takes messages while it works on *task*."""

    def message(self, text: str) -> bytes:
        """Spell a message as the agent reads it."""

    def turn_reader(self) -> TurnReader:
        """Return a new reader of one session's output."""


class Adapter(Protocol):
    """One kind of agent."""

    @property
    def name(self) -> str:
        """Return the name by which documents ask for it."""

    @property
    def default_network(self) -> Network:
        """Return the network it is on where nobody says another."""

    @property
    def client(self) -> Client | None:
        """Return what is known of the client that it drives, where it drives one."""

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Turn *task* into the command that works on it.

        A client that knows rules for its tools is given those of `task.permitted`; all others find them, like the rest
        of the permissions, in SHOAL_PERMISSIONS_FILE. The sandbox enforces what a rule does not. A rule that a client
        cannot be held to is refused with `Unavailable`.
        """

    def reader(self) -> Reader | None:
        """Return a new reader of one session's output; `None` if that is plain text."""
