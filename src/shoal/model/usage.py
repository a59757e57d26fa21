"""What agents spend on their models: counts and a price, by the names of a report."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

Usage = Mapping[str, float]
NONE: Usage = MappingProxyType({"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0})


def summed(parts: Iterable[Usage]) -> dict[str, float]:
    """Add up what several spent; nobody's spending is nothing at all, not zeros."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total
