"""The keys of an in-process agent: its tools, its budget, and the replies of a model that is scripted."""

import json
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator

from shoal.model.agent import TOOLS, Budget
from shoal.model.budget import SpendingLimit
from shoal.pipeline.fields import Shape, one_of, wrong
from shoal.pipeline.problems import key, nearest, show_value

EXAMPLE = "{read: {path: README.md}}"


def _reply(value: object) -> object:
    match value:
        case str():
            return value
        case dict():
            return _call(value)
        case [_, *_]:
            return [_call(item) for item in value]
        case _:
            raise wrong(f"a reply is a text, a call like {EXAMPLE} or a list of calls, {_not(value)}")


def _call(value: object) -> object:
    match value:
        case dict() if len(value) == 1:
            ((tool, arguments),) = value.items()
        case _:
            raise wrong(f"a call is one tool with its arguments, like {EXAMPLE}, {_not(value)}")
    if tool not in TOOLS:
        raise wrong(f"no tool named {show_value(tool)}; {nearest(str(tool), TOOLS)}")
    if not isinstance(arguments, dict):
        raise wrong(f"the arguments of {key(tool)} must be a mapping, {_not(arguments)}")
    for name in arguments:
        if name not in TOOLS[tool]:
            raise wrong(f"{key(tool)} takes no {key(str(name))}; {nearest(str(name), TOOLS[tool])}")
    return value


def _not(value: object) -> str:
    return f"not {show_value(value)}"


def _once(tools: list[str]) -> list[str]:
    return list(dict.fromkeys(tools))


Tools = Annotated[list[Annotated[str, one_of("tools", *TOOLS)]], AfterValidator(_once)]
Replies = Annotated[list[Annotated[object, PlainValidator(_reply)]], Field(min_length=1)]


class SpendingShape(Shape):
    """What may be spent on models; an agent that reaches it is stopped before its next request, and its work kept."""

    usd: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Dollars, by the list prices of the models; a model without one is refused."""
    tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Tokens, in and out together."""

    @property
    def given(self) -> SpendingLimit:
        """Build the value."""
        return SpendingLimit(usd=None if self.usd is None else Decimal(str(self.usd)), tokens=self.tokens)


class BudgetShape(Shape):
    """What each session of an agent may spend on its model."""

    turns: Annotated[int, Field(ge=1)] | None = None
    """With `python`: requests to the model."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens, in and out together."""
    usd: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Dollars, by the list price of the model."""
    dollars: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Alias of `usd`."""

    @property
    def given(self) -> Budget:
        """Build the value."""
        return Budget(turns=self.turns, tokens=self.tokens, dollars=self.usd or self.dollars)

    @property
    def session_limit(self) -> SpendingLimit:
        """Build the budget of a session that asks its model through the gateway."""
        usd = self.usd or self.dollars
        return SpendingLimit(usd=None if usd is None else Decimal(str(usd)), tokens=self.tokens)


def canonical_replies(replies: list[object]) -> str:
    """Write replies as JSON: the same ones give the same text."""
    return json.dumps(replies, sort_keys=True, separators=(",", ":"))
