"""What may be spent on models, and what was."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Self

from shoal.errors import BadInput

BUDGET = "budget"
"""How the status of a session calls the limit, where a budget ended it."""
MOST_USD = Decimal(10**9)
MOST_TOKENS = 10**15
CENT = Decimal("0.01")


class BadBudget(BadInput):
    """A budget that has no meaning."""

    def __init__(self, text: object, why: str) -> None:
        super().__init__(f"budget: {ascii(text)[:60]} {why}; write `5` for 5 USD, or `usd: 5` and `tokens: 2000000`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Tokens and dollars that were spent; *unpriced* models are among the tokens, but not among the dollars."""

    usd: Decimal = Decimal(0)
    tokens: int = 0
    unpriced: frozenset[str] = frozenset()

    def __add__(self, other: "Spending") -> "Spending":
        unpriced = self.unpriced | other.unpriced
        return Spending(usd=self.usd + other.usd, tokens=self.tokens + other.tokens, unpriced=unpriced)

    def document(self) -> Mapping[str, Any]:
        """Write it as JSON; dollars are a text, for they are exact."""
        return {"usd": str(self.usd), "tokens": self.tokens, "unpriced": sorted(self.unpriced)}

    @classmethod
    def of_usage(cls, usage: Mapping[str, float]) -> Self:
        """Read the usage of a report."""
        tokens = int(usage.get("input_tokens", 0) + usage.get("output_tokens", 0))
        return cls(usd=Decimal(str(round(usage.get("cost_usd", 0.0), 9))), tokens=tokens)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read what `document` wrote."""
        usd, tokens = Decimal(document["usd"]), int(document["tokens"])
        return cls(usd=usd, tokens=tokens, unpriced=frozenset(document["unpriced"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingLimit:
    """What may be spent; `None` means no bound."""

    usd: Decimal | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise `BadBudget` for a bound that allows nothing, or that is no number."""
        if self.usd is not None and not (self.usd.is_finite() and 0 < self.usd <= MOST_USD):
            raise BadBudget(self.usd, f"USD is not between 0 and {MOST_USD}")
        if self.tokens is not None and not 0 < self.tokens <= MOST_TOKENS:
            raise BadBudget(self.tokens, f"tokens is not between 1 and {MOST_TOKENS}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the dollars of a command line: `5`, `0.50` or `$5`."""
        try:
            return cls(usd=Decimal(text.removeprefix("$")))
        except InvalidOperation:
            raise BadBudget(text, "is not an amount of dollars") from None

    @classmethod
    def read(cls, given: object) -> Self:
        """Read a budget as programs write it: dollars, as a number or a text, or a mapping with `usd` and `tokens`."""
        match given:
            case cls():
                return given
            case str():
                return cls.parse(given)
            case bool():
                raise BadBudget(given, "is no amount")
            case int() | float() | Decimal():
                return cls.parse(str(given))
            case Mapping() if given and given.keys() <= {"usd", "tokens"}:
                usd, tokens = given.get("usd"), given.get("tokens")
                if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int)):
                    raise BadBudget(tokens, "tokens is no whole number")
                if usd is not None and (isinstance(usd, bool) or not isinstance(usd, int | float | str | Decimal)):
                    raise BadBudget(usd, "USD is no amount")
                return cls(usd=None if usd is None else cls.parse(str(usd)).usd, tokens=tokens)
            case _:
                raise BadBudget(given, "is none")

    def find_reached(self, spent: Spending) -> str | None:
        """Name the bound that is reached, or `None`."""
        if self.usd is not None and spent.usd >= self.usd:
            return "usd"
        return "tokens" if self.tokens is not None and spent.tokens >= self.tokens else None

    def describe(self, spent: Spending) -> str:
        """Write what was spent of what, as `$4.99 of $5.00, 1,200 of 2,000 tokens`."""
        parts = []
        if self.usd is not None:
            parts.append(f"{show_usd(spent.usd)} of {show_usd(self.usd)}")
        if self.tokens is not None:
            parts.append(f"{spent.tokens:,} of {self.tokens:,} tokens")
        return ", ".join(parts) or f"{show_usd(spent.usd)}, {spent.tokens:,} tokens"

    def describe_limit(self) -> str:
        """Write what may be spent, as `$5.00 and 2,000 tokens`."""
        parts = ([] if self.usd is None else [show_usd(self.usd)]) + (
            [] if self.tokens is None else [f"{self.tokens:,} tokens"]
        )
        return " and ".join(parts) or "any amount"

    def document(self) -> Mapping[str, Any]:
        """Write it as JSON."""
        return {"usd": None if self.usd is None else str(self.usd), "tokens": self.tokens}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read what `document` wrote."""
        usd = document["usd"]
        return cls(usd=None if usd is None else Decimal(usd), tokens=document["tokens"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopedBudget:
    """A budget with all that counts towards it: a run, a step, a persona or a session."""

    scope: str
    """`run`, or `step:`, `persona:` or `session:` with a name."""
    limit: SpendingLimit
    spent: Spending = Spending()

    @property
    def title(self) -> str:
        """Name it for a person, as `the budget of step build`."""
        kind, _, name = self.scope.partition(":")
        return f"the budget of {kind} {name}" if name else f"the budget of the {kind}"

    def document(self) -> Mapping[str, Any]:
        """Write it as JSON."""
        return {"scope": self.scope, "limit": self.limit.document(), "spent": self.spent.document()}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read what `document` wrote."""
        limit, spent = SpendingLimit.of(document["limit"]), Spending.of(document["spent"])
        return cls(scope=document["scope"], limit=limit, spent=spent)

    @property
    def why_stopped(self) -> str | None:
        """Say that it is reached, or `None`."""
        if self.limit.find_reached(self.spent) is None:
            return None
        return f"{self.title} is reached: {self.limit.describe(self.spent)}"


def show_usd(amount: Decimal) -> str:
    """Write dollars as people do, and as many places as a small amount needs."""
    places = 2 if amount >= CENT or not amount else 6
    return f"${amount:,.{places}f}"
