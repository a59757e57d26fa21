"""Shell text as values: how a shell reads each placeholder `{{ … }}`, and the words of its commands."""

from dataclasses import dataclass, field
from enum import Enum

MASK = "\0"
"""What stands for the first character of a place while the text is read; no shell's text contains it."""
FILL = "\x02"
"""What stands for the further characters of a place."""
EXPANSION = "\x01"
"""What stands in a word for whatever the shell itself puts there."""
STDIN = "<<"
"""The text of a word that is no argument, but what the command reads."""


class Context(Enum):
    """Where a placeholder is."""

    WORD = "unquoted"
    DOUBLE = "in double quotes"
    SINGLE = "in single quotes"
    HERE = "in a here-document"
    NUMBER = "in arithmetic"
    COMMENT = "in a comment"


@dataclass(frozen=True, slots=True)
class Reading:
    """How a placeholder is read: its context, or why it is refused."""

    context: Context | None
    refusal: str = ""


@dataclass(slots=True)
class Word:
    """A word of a command; *text* has `MASK` for each placeholder, and `EXPANSION` for what the shell inserts."""

    text: str = ""
    places: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    """Places of the commands in it, as in `"$(echo {{ x }})"`: what these print is a part of the word."""
    is_plain: bool = True
    """Whether nothing of it is quoted."""

    @property
    def all_places(self) -> list[int]:
        """List its own placeholders, and those of the commands in it."""
        return [*self.places, *self.inner]


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of a part of the text, so that a placeholder can be filled in."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class ShellText:
    """Text as a shell reads it: how each placeholder is read, by its start, and the commands with placeholders."""

    readings: dict[int, Reading]
    commands: tuple[tuple[Word, ...], ...]
    edits: tuple[Edit, ...]


class Doubt(Exception):
    """From *since* on, shells may read the text differently."""

    def __init__(self, why: str, since: int) -> None:
        super().__init__(why)
        self.why = why
        self.since = since
