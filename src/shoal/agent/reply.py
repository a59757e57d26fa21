"""What a turn gives back."""

import copy
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The model's answer, and what it took to come to it."""

    text: str
    run_id: str
    agent_id: str
    usage: RunUsage = field(repr=False)
    cost: Decimal | None
    """In US dollars; `None` where a price is not known."""
    _messages: tuple[ModelMessage, ...] = field(repr=False)

    def __str__(self) -> str:
        """Give the text."""
        return self.text

    @property
    def messages(self) -> list[ModelMessage]:
        """Copy the messages of this turn, the prompt's first."""
        return copy.deepcopy(list(self._messages))
