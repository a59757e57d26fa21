"""What an answer costs: list prices of models, written by `scripts/prices.py`, and never an estimate."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from shoal.gateway.meters import TokenUsage
from shoal.model.budget import Spending

FILE = Path(__file__).with_name("prices.json")
MILLION = Decimal(1_000_000)
FALLBACKS: Mapping[str, Sequence[str]] = {
    "cached_input": ("input",),
    "cache_write": ("input",),
    "cache_write_1h": ("cache_write", "input"),
}
"""What is charged where a provider has no price of its own for it."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelPrices:
    """The dollars for a million tokens of each kind; each is a list of rates by how long the input is."""

    rates: Mapping[str, Sequence[tuple[int, Decimal]]]

    def cost(self, usage: TokenUsage) -> Decimal:
        """Return what an answer cost, exactly."""
        total = Decimal(0)
        for kind in ("input", "cached_input", "cache_write", "cache_write_1h", "output"):
            count = getattr(usage, kind)
            total += count * self._rate(kind, usage.total_input) if count else 0
        return total / MILLION

    def _rate(self, kind: str, total_input: int) -> Decimal:
        for name in (kind, *FALLBACKS.get(kind, ())):
            if tiers := self.rates.get(name):
                return next(rate for start, rate in reversed(tiers) if total_input > start or not start)
        return Decimal(0)


def table_date() -> str:
    """Return the date of the prices."""
    return str(_table()["date"])


@cache
def find_prices(format: str, model: str, day: date) -> ModelPrices | None:
    """Return the prices of a model on a day, or `None` if it is unknown."""
    names = [model.lower(), model.lower().rpartition("/")[2]]
    for name in dict.fromkeys(names):
        for known in _table().get(format, ()):
            if _fits(known["match"], name):
                return _prices_on(known["prices"], day)
    return None


def price(format: str, usage: TokenUsage, day: date) -> Spending:
    """Return what an answer cost; a model without a price is named, and its dollars are not counted."""
    prices = find_prices(format, usage.model, day)
    if prices is None:
        return Spending(tokens=usage.total, unpriced=frozenset({usage.model or "unknown"}))
    return Spending(usd=prices.cost(usage), tokens=usage.total)


@cache
def _table() -> Json:
    table: Json = json.loads(FILE.read_bytes())
    return table


def _fits(clause: Json, name: str) -> bool:
    ((kind, given),) = clause.items()
    match kind:
        case "or":
            return any(_fits(part, name) for part in given)
        case "and":
            return all(_fits(part, name) for part in given)
        case "equals":
            return bool(name == given.lower())
        case "starts_with":
            return name.startswith(given.lower())
        case "ends_with":
            return name.endswith(given.lower())
        case "contains":
            return bool(given.lower() in name)
        case "regex":
            return re.search(given, name) is not None
        case _:
            return False


def _prices_on(listed: Sequence[Json], day: date) -> ModelPrices:
    """Choose as the source does: the latest that is in effect, else the first."""
    found = next((entry for entry in reversed(listed) if entry.get("from", "") <= day.isoformat()), listed[0])
    rates = {kind: _tiers(rate) for kind, rate in found.items() if kind != "from"}
    return ModelPrices(rates)


def _tiers(rate: str | Sequence[tuple[int, str]]) -> Sequence[tuple[int, Decimal]]:
    if isinstance(rate, str):
        return [(0, Decimal(rate))]
    return [(int(start), Decimal(price)) for start, price in rate]
