"""What an agent does, as small frozen events for its subscribers."""

import copy
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

SAID_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """The base of all events: the turn, its agent, and the agent that it was forked from."""

    run_id: str
    agent_id: str
    parent_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(AgentEvent):
    """A turn began; *prompt* is `None` if it continues without one."""

    prompt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextArrived(AgentEvent):
    """A piece of a streamed reply."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplied(AgentEvent):
    """The model answered one request."""

    text: str
    input_tokens: int
    output_tokens: int
    cost: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(AgentEvent):
    """The model called a tool, which runs."""

    tool: str
    call_id: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned(AgentEvent):
    """A tool ended; *error* says what went wrong."""

    tool: str
    call_id: str
    content: str
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(AgentEvent):
    """A turn ended; *error* says why it could not finish."""

    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(AgentEvent):
    """A requested setting could not be applied as given."""

    text: str


def event_text(value: object) -> str:
    """Return *value* as text, cut to what an event carries."""
    text = str(value)
    return text if len(text) <= SAID_CHARACTERS else f"{text[:SAID_CHARACTERS]} [{len(text) - SAID_CHARACTERS} more]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The model's answer, and its usage."""

    text: str
    run_id: str
    agent_id: str
    usage: RunUsage = field(repr=False)
    cost: Decimal | None
    """In US dollars; `None` if a price is unknown."""
    _messages: tuple[ModelMessage, ...] = field(repr=False)

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    @property
    def messages(self) -> list[ModelMessage]:
        """Copy the messages of this turn, the prompt's first."""
        return copy.deepcopy(list(self._messages))
