"""What an agent client reports about its work: messages, tool calls, retries, and usage."""

from dataclasses import dataclass
from enum import StrEnum


class Act(StrEnum):
    """The kind of activity."""

    BEGAN = "began"
    """The client has started; *text* names its model."""
    SAID = "said"
    """The model addressed *text* to a person."""
    TOOL = "tool"
    """It called *tool*; *text* is the argument that matters (a command, a path)."""
    RESULT = "result"
    """A tool call ended; *text* is the beginning of its result."""
    DENIED = "denied"
    """*tool* was denied, because of *text*."""
    RETRY = "retry"
    """The model request failed, because of *text*; the client retries after *seconds*."""
    TROUBLE = "trouble"
    """Something went wrong, *text*, which need not be the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One activity of a client."""

    act: Act
    text: str = ""
    tool: str = ""
    call: str = ""
    """The client's own id of the tool call."""
    ok: bool = True
    seconds: float = 0.0
