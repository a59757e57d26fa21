"""A conversation as the model sees it, in whatever wire format, and the model's answer."""

import hashlib
import itertools
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from shoal.testing.model.turns import Arguments, Fail, Usage

LENGTH = 22


def fresh(prefix: str) -> str:
    """Make a name that was not given before."""
    return prefix + uuid.uuid4().hex[:LENGTH]


def part(whole: str, index: int) -> str:
    """Name a part of what is named *whole*."""
    return f"{whole}{index:02x}"


def whole(part: object) -> str:
    """Return what the name of a part began with, without its prefix."""
    return str(part).rpartition("_")[2][:LENGTH]


Body = dict[str, Any]
"""JSON of the wire: these are parsers, and clients' input has no type."""

Role = Literal["user", "assistant", "result"]
Tools = Mapping[str, Body | None]
"""The JSON schema of each tool; `None` for one that takes a text."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: what a person said, what the model did, or what a tool gave."""

    role: Role
    text: str
    answer: str = ""
    """The id of the answer that it is part of, if the client kept it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a request holds."""

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: Tools
    is_stream: bool

    @property
    def user(self) -> str:
        """What the person said last."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")

    @property
    def results(self) -> tuple[str, ...]:
        """What the tools gave, oldest first."""
        return tuple(message.text for message in self.messages if message.role == "result")

    @property
    def position(self) -> int:
        """How many answers it contains: a retry has the same position, whatever its number."""
        return answers(self.messages)

    @property
    def fingerprint(self) -> str:
        """An id for this conversation at this position, the same when a client retries."""
        parts = [_lasting(self.system), *(message.text for message in self.messages), str(len(self.tools))]
        return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()


def answers(messages: tuple[Message, ...]) -> int:
    """Count the model's answers: one in several pieces counts once, even if each call is followed by its own result."""
    count, known = 0, {""}
    for before, message in itertools.pairwise((Message("user", ""), *messages)):
        is_piece = before.role == "assistant" or message.answer in known - {""}
        count += message.role == "assistant" and not is_piece
        known.add(message.answer)
    return count


def _lasting(system: str) -> str:
    """Leave out the line in which a client counts its requests."""
    return "\n".join(line for line in system.splitlines() if not line.startswith("x-anthropic-billing-header"))


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A tool of the client's, and what it is called with."""

    name: str
    arguments: Arguments
    is_custom: bool = False

    @property
    def text(self) -> str:
        """The arguments as they are on the wire."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """The model's text and tool calls."""

    model: str
    text: str
    calls: tuple[ModelCall, ...]
    usage: Usage
    name: str = field(default_factory=lambda: fresh(""))


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream: a text as it is, or JSON, with a name where the wire has them."""

    content: Body | str
    name: str | None = None

    def encode(self) -> bytes:
        """Write it as a server-sent event."""
        name = f"event: {self.name}\n" if self.name else ""
        text = self.content if isinstance(self.content, str) else json.dumps(self.content)
        return f"{name}data: {text}\n\n".encode()


class WireFormat(Protocol):
    """A wire format: a module of its own for each."""

    def read(self, path: str, body: Body) -> Conversation:
        """Find the conversation in a request."""

    def whole(self, answer: ModelAnswer) -> Body:
        """Write an answer as one document."""

    def events(self, answer: ModelAnswer) -> Iterator[Event]:
        """Write an answer as a stream."""

    def refusal(self, fail: Fail) -> Body:
        """Write why a request was refused."""

    def failure(self, fail: Fail) -> Iterator[Event]:
        """Write why as events, for a stream that has begun."""


def words(text: str) -> list[str]:
    """Split a text as a model streams it: each word with the space behind it."""
    pieces: list[str] = []
    for word in text.splitlines(keepends=True):
        parts = word.split(" ")
        pieces += [f"{part} " for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
    return pieces


def text_of(content: Any) -> str:  # noqa: ANN401
    """Return the text of content that is one, a list of blocks, or a block."""
    match content:
        case str():
            return content
        case list():
            return "\n".join(filter(None, map(text_of, content)))
        case {"text": str(text)}:
            return text
        case {"content": inner}:
            return text_of(inner)
        case _:
            return ""
