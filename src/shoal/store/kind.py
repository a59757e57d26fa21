"""The protocol of a store of events: small, so that another kind of store is one module."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from shoal.model.events import Event, Recorded, RunPlanned
from shoal.store.codec import encode

LASTING = ("SessionStarted", "Imported", "SessionEnded")
"""The events that are also written to a session's own log, in case the ledger is lost."""

TALK = ("MessageSent", "MessagesTaken", "ChildSpawned", "TalkRefused")
"""The events of agents that talk, most of which a reading of the whole ledger leaves out."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as stored."""

    at: float
    run: str
    session: str | None
    kind: str
    body: str

    @classmethod
    def of(cls, event: Event, at: float) -> Self:
        """Make the row of *event*."""
        session = getattr(event, "session", None)
        named = None if session is None else _storable(session)
        return cls(at, _storable(event.run), named, type(event).__name__, encode(event))


@dataclass(frozen=True, slots=True)
class RunSize:
    """How much the ledger has of a run, and up to when and to which event."""

    run: str
    last_at: float
    last_seq: int
    size: int


class EventLog(Protocol):
    """One log, to which a single thread appends."""

    def write(self, rows: Sequence[EventRow], claims: Sequence[str] = (), checks: Sequence[str] = ()) -> list[int]:
        """Write *rows* as one transaction and return their numbers, which only grow, once it is committed.

        With it this process becomes the owner of the runs in *claims*: who owned one before can write nothing more
        about it, but gets `RunTaken`, also for a run in *checks*. With no rows it only makes sure that the log can be
        written. Raises when the rows are not kept.
        """

    def forget(self, run: str, last: int) -> bool:
        """Remove all events of *run* if the last one is number *last* still; return whether it was."""

    def close(self) -> None:
        """Close the log until the next write."""


class Store(Protocol):
    """Stores the events of one repository: the ledger, and a log for each session."""

    def ledger(self) -> EventLog:
        """Return the log of runs, steps and sessions, in which a written event survives a power failure."""

    def session_log(self, session: str) -> EventLog:
        """Return the log of *session*, in which a written event survives a kill."""

    def read_events(self, run: str | None = None, after: int = 0) -> Iterator[Recorded]:
        """Read the ledger in order, for one *run* or for all, with numbers above *after*.

        Events of unknown kinds are skipped, but stay in the store; so do the plans of runs, and messages of agents.
        """

    def read_talk(self, run: str, after: int = 0) -> Iterator[Recorded]:
        """Read what agents of *run* said to each other and started, in order, with numbers above *after*."""

    def read_plan(self, run: str) -> RunPlanned | None:
        """Read the last recorded plan of *run*."""

    def read_unended(self, run: str) -> Iterator[Recorded]:
        """Read the start events of those sessions of *run* that have no end, in order."""

    def read_session(self, session: str, after: int = 0, kind: str | None = None) -> Iterator[Recorded]:
        """Read the log of *session* in order, with numbers above *after*, or only the events of one *kind*."""

    def list_sessions(self) -> list[str]:
        """List the names of all sessions, in no order."""

    def find_runs(self, word: str | None) -> list[str]:
        """Find the runs with a session that *word* may mean: its name or a part of it, its step or its branch.

        Without a word it is the run of the latest session.
        """

    def measure_runs(self) -> list[RunSize]:
        """Measure all runs, newest first."""

    def list_runs(self) -> list[str]:
        """List the ids of all runs, newest first."""


def _storable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
