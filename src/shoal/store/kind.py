"""What a store of events is: small enough that a second kind of it is one module."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from shoal.model.events import Event, Recorded, RunPlanned
from shoal.store.codec import encode

LASTING = ("SessionStarted", "Imported", "SessionEnded")
"""What a session's own log has besides what its agent did, should the ledger be lost."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as a store keeps it."""

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


class EventLog(Protocol):
    """One log that rows are added to, by one thread."""

    def write(self, rows: Sequence[EventRow], claims: Sequence[str] = (), checks: Sequence[str] = ()) -> list[int]:
        """Write *rows* as one transaction and return their numbers, which only grow, once it is committed.

        With it this process becomes the owner of the runs in *claims*: who owned one before can write nothing more
        about it, but gets `RunTaken`, also for a run in *checks*. With no rows it only makes sure that the log can be
        written. Raises when the rows are not kept.
        """

    def close(self) -> None:
        """Let go of the log; the next write opens it again."""


class Store(Protocol):
    """Keeps the events of one repository: those of the ledger, and a log of its own for each session."""

    def ledger(self) -> EventLog:
        """Give the log of runs, steps and sessions, which survives a power failure once it is written."""

    def session_log(self, session: str) -> EventLog:
        """Give the log of what *session* did, which survives a kill."""

    def read_events(self, run: str | None = None, after: int = 0) -> Iterator[Recorded]:
        """Read the ledger in order, of one *run* or of all, with numbers above *after*.

        Events of kinds that this Shoal does not know are skipped; they stay in the store. So are the plans of runs.
        """

    def read_plan(self, run: str) -> RunPlanned | None:
        """Read the plan of *run* as it was recorded last."""

    def read_unended(self, run: str) -> Iterator[Recorded]:
        """Read the starts of those sessions of *run* that have no end, in order."""

    def read_session(self, session: str, after: int = 0, kind: str | None = None) -> Iterator[Recorded]:
        """Read the log of *session* in order, with numbers above *after*, or of it only the events of one *kind*."""

    def list_runs(self) -> list[str]:
        """List the ids of all runs, newest first."""


def _storable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
