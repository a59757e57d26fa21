"""What an agent client does, as it tells it: messages, tool calls, retries, and what it spent."""

from dataclasses import dataclass
from enum import StrEnum


class Act(StrEnum):
    """Which kind of thing it did."""

    BEGAN = "began"
    """It is up; *text* names its model."""
    SAID = "said"
    """The model said *text* to a person."""
    TOOL = "tool"
    """It called *tool*; *text* is the argument that matters (a command, a path)."""
    RESULT = "result"
    """A tool call ended, well or not; *text* is the beginning of what came out."""
    DENIED = "denied"
    """It was not let use *tool*, because of *text*."""
    RETRY = "retry"
    """The model could not be asked, because of *text*; it tries again after *seconds*."""
    TROUBLE = "trouble"
    """Something went wrong, *text*, which need not be the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One thing that a client did."""

    act: Act
    text: str = ""
    tool: str = ""
    call: str = ""
    """The client's own name for the tool call."""
    ok: bool = True
    seconds: float = 0.0
