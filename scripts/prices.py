"""Write src/shoal/gateway/prices.json, the prices of models, from the installed `genai-prices`."""

import json
import re
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from genai_prices import data, types

PAGE = Path(__file__).parents[1] / "src" / "shoal" / "gateway" / "prices.json"
FORMATS = {
    "anthropic": ("anthropic",),
    "openai": ("openai", "deepseek", "mistral", "x-ai", "moonshotai", "zai", "minimax"),
    "gemini": ("google",),
}
"""Whose models are asked by which wire format; of two that know a name, the first holds."""
RATES = {
    "input": "input_mtok",
    "cached_input": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
    "output": "output_mtok",
}


def main() -> None:
    """Write the file."""
    providers = {provider.id: provider for provider in data.providers}
    models = {
        name: [_model(model) for known in ids for model in providers[known].models if _is_for_text(model)]
        for name, ids in FORMATS.items()
    }
    lines = [
        f"  {json.dumps(name)}: [\n" + ",\n".join(f"    {json.dumps(model)}" for model in models[name]) + "\n  ]"
        for name in models
    ]
    head = f'  "date": "{_newest()}",\n  "source": "genai-prices {version("genai_prices")}",\n'
    PAGE.write_text("{\n" + head + ",\n".join(lines) + "\n}\n")


def _newest() -> str:
    """Return the newest date that the source mentions: its prices were looked up then."""
    text = Path(str(data.__file__)).read_text()
    dates = {date.fromisoformat(found) for found in re.findall(r"\b20\d\d-[01]\d-[0-3]\d\b", text)}
    dates |= {date(*map(int, found)) for found in re.findall(r"date\((20\d\d), (\d+), (\d+)\)", text)}
    return str(max(day for day in dates if day <= date.today()))


def _is_for_text(model: types.ModelInfo) -> bool:
    return getattr(_listed(model)[-1].prices, "output_mtok", None) is not None


def _listed(model: types.ModelInfo) -> list[Any]:
    if isinstance(model.prices, list):
        return model.prices
    return [types.ConditionalPrice(constraint=None, prices=model.prices)]


def _model(model: types.ModelInfo) -> dict[str, Any]:
    return {"id": model.id, "match": _match(model.match), "prices": [_price(price) for price in _dated(model)]}


def _dated(model: types.ModelInfo) -> list[Any]:
    """Leave out prices of hours of the day: what they save is little, and a budget is better counted too high."""
    kinds = (type(None), types.StartDateConstraint)
    return [price for price in _listed(model) if isinstance(price.constraint, kinds)]


def _price(price: types.ConditionalPrice) -> dict[str, Any]:
    match price.constraint:
        case types.StartDateConstraint(start_date=day):
            start = {"from": str(day)}
        case _:
            start = {}
    return start | {
        name: _rate(value) for name, key in RATES.items() if (value := getattr(price.prices, key)) is not None
    }


def _rate(value: object) -> object:
    if isinstance(value, types.TieredPrices):
        return [[0, str(value.base)], *([tier.start, str(tier.price)] for tier in value.tiers)]
    return str(value)


def _match(clause: object) -> dict[str, Any]:
    match clause:
        case types.ClauseOr(or_=inner):
            return {"or": [_match(part) for part in inner]}
        case types.ClauseAnd(and_=inner):
            return {"and": [_match(part) for part in inner]}
    ((name, text),) = vars(clause).items()
    return {name: text}


if __name__ == "__main__":
    main()
