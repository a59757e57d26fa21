"""The turns of a script: what the model does for a request."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Arguments = Mapping[str, object] | str
"""What a tool is called with; a text for a tool that takes one instead of JSON."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that an answer reports; *cached* is the part of *input* that was read from a cache."""

    input: int = 0
    output: int = 0
    cached: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.input + other.input, self.output + other.output, self.cached + other.cached)


@dataclass(frozen=True, slots=True)
class Say:
    """Answer with a text."""

    text: str
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """Call a tool: one of the client's by name, or a kind (`write`, `shell`, `read`, `edit`) whatever its name.

    A kind takes `path`, `content`, `command`, `old` and `new`, under the names in the tool's schema.
    """

    tool: str
    arguments: Arguments = field(default_factory=dict)
    say: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Refuse with a status, *times* over; as the last turn of a script, forever.

    With *is_streamed*, it follows a good status as an event of the stream: one client retries only that kind of 429.
    """

    status: int = 500
    message: str = ""
    retry_after: float | None = None
    times: int = 1
    code: str | None = None
    is_streamed: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    """Take the request and never answer it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Break the connection off in the middle of the answer *of*, after so many chunks or so many bytes of it."""

    after_chunks: int = 1
    after_bytes: int | None = None
    of: Say | Use = Say("never said to the end")


@dataclass(frozen=True, slots=True)
class Garble:
    """Answer with something that is no JSON."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait so many seconds before the turn *then*, and *between* two chunks of it."""

    seconds: float
    then: "Say | Use | tuple[Say | Use, ...] | Fail | Cut" = Say("done")
    between: float = 0.0


Spoken = Say | Use | tuple[Say | Use, ...]
"""An answer: a text, a tool, or several of them at once."""

Turn = Spoken | Fail | Hang | Cut | Garble | Delay


def is_spoken(turn: Turn) -> bool:
    """Return whether the conversation has one more answer after *turn*."""
    if isinstance(turn, Delay):
        return is_spoken(turn.then)
    return isinstance(turn, Say | Use | tuple)


def uses_a_tool(turn: Turn) -> bool:
    """Return whether *turn* only makes sense for a client with tools."""
    match turn:
        case Use():
            return True
        case tuple():
            return any(isinstance(part, Use) for part in turn)
        case Delay():
            return uses_a_tool(turn.then)
        case _:
            return False
