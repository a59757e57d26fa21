"""What answers cost: the same as the source of the prices says, exactly."""

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data import providers
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.gateway import prices
from shoal.gateway.meters import TokenUsage
from shoal.gateway.prices import FILE, find_prices, price, table_date

TODAY = date(2026, 11, 19)
SOURCES = {"anthropic": "anthropic", "openai": "openai", "gemini": "google"}
MODELS = [
    (format, model.id)
    for format, source in SOURCES.items()
    for provider in providers
    if provider.id == source
    for model in provider.models
    if find_prices(format, model.id, TODAY)
]
COUNT = st.integers(0, 400_000)


@given(st.sampled_from(MODELS), COUNT, COUNT, COUNT, COUNT)
@settings(max_examples=300, deadline=None)
def test_a_cost_is_what_the_source_of_the_prices_says(
    named: tuple[str, str], input: int, cached: int, written: int, output: int
) -> None:
    format, model = named
    rates = find_prices(format, model, TODAY)
    assert rates is not None
    cached = cached if "cached_input" in rates.rates else 0
    written = written if "cache_write" in rates.rates else 0
    usage = TokenUsage(model=model, input=input, cached_input=cached, cache_write=written, output=output)

    found = price(format, usage, TODAY)

    expected = calc_price(
        Usage(
            input_tokens=usage.total_input, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=output
        ),
        model,
        provider_id=SOURCES[format],
        genai_request_timestamp=datetime(2026, 11, 19, tzinfo=UTC),
    )
    assert found.usd == expected.total_price
    assert found.tokens == usage.total


def test_most_models_have_a_price() -> None:
    assert len(MODELS) > 120


@pytest.mark.parametrize(
    ("format", "model"),
    [
        ("anthropic", "claude-sonnet-4-5-20250929"),
        ("anthropic", "claude-opus-5"),
        ("openai", "gpt-5"),
        ("openai", "openai/gpt-5-mini"),
        ("openai", "deepseek-chat"),
        ("gemini", "gemini-2.5-flash"),
    ],
)
def test_models_are_known_by_the_names_that_clients_use(format: str, model: str) -> None:
    found = find_prices(format, model, TODAY)

    assert found is not None
    assert found.cost(TokenUsage(input=1_000_000, output=1_000_000)) > Decimal("0.1")


def test_a_long_input_and_an_hour_of_cache_cost_what_is_listed() -> None:
    sonnet = find_prices("anthropic", "claude-sonnet-4-5", TODAY)
    assert sonnet is not None

    assert sonnet.cost(TokenUsage(input=200_000, output=1000)) == Decimal("0.615")
    assert sonnet.cost(TokenUsage(input=200_001, output=1000)) == Decimal("1.222506")
    assert sonnet.cost(TokenUsage(cache_write=1000, cache_write_1h=1000)) == Decimal("0.00975")


@pytest.mark.parametrize("model", ["scripted", "", "my-own-model", "x" * 5000])
def test_a_model_that_is_not_known_has_no_price_and_is_named(model: str) -> None:
    found = price("openai", TokenUsage(model=model, input=5, output=3), TODAY)

    assert (found.usd, found.tokens) == (Decimal(0), 8)
    assert found.unpriced == {model or "unknown"}


def test_a_price_that_comes_later_does_not_count_yet() -> None:
    listed = [{"input": "1"}, {"from": "2026-12-01", "input": "2"}]

    assert [prices._prices_on(listed, date(2026, month, 5)).rates["input"][0][1] for month in (11, 12)] == [1, 2]


def test_the_file_is_what_the_script_writes(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "prices.py"
    program = f"import runpy, pathlib; m = runpy.run_path({str(script)!r}); m['main'].__globals__['PAGE'] = pathlib.Path({str(tmp_path / 'p')!r}); m['main']()"
    subprocess.run([sys.executable, "-c", program], check=True)

    assert (tmp_path / "p").read_text() == FILE.read_text(), "run scripts/prices.py"
    assert "2026-01-01" < table_date() <= str(date.today())
