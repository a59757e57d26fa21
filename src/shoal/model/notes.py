"""Notes that the agents of a run, and a person, share: what is kept of one, and the events of them."""

from dataclasses import dataclass

MOST_NOTE_CHARS = 16_000
MOST_NOTE_KEY_CHARS = 120
MOST_NOTES = 1000
"""Keys in one place: in a run, or in the repository; a person's apart from agents'."""
MOST_VERSIONS = 10
MOST_WRITES = 500
"""Notes that one session may write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteKey:
    """Where a note is: agents cannot write where a person's notes are."""

    key: str
    run: str = ""
    """The run that it belongs to; empty for the repository's notes, which stay."""
    is_trusted: bool = False
    """Whether it is a person's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One version of a note, and where it comes from."""

    at: NoteKey
    version: int
    text: str
    agent: str = ""
    """Who wrote it; empty for a person."""
    session: str = ""
    from_run: str = ""
    commit: str = ""
    """What its session started from."""
    time: float = 0.0

    def as_fields(self) -> dict[str, object]:
        """Return it for a document."""
        place = {"key": self.at.key, "run": self.at.run or None, "trusted": self.at.is_trusted}
        source = {"agent": self.agent or None, "session": self.session or None, "from_run": self.from_run or None}
        return {
            **place,
            "version": self.version,
            "text": self.text,
            **source,
            "commit": self.commit or None,
            "time": self.time,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteWritten:
    """An agent wrote a note; *beginning* is that of its text, which the notes' own database has."""

    run: str
    session: str
    agent: str
    key: str
    version: int
    is_kept: bool = False
    """Whether it stays in the repository after the run."""
    beginning: str = ""


NoteEvent = NoteWritten
