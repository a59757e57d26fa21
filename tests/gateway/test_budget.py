"""Budgets: what is spent is counted exactly, and a budget that is reached admits no further request."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.gateway.budget import BudgetBook
from shoal.gateway.meters import TokenUsage
from shoal.model.budget import ScopedBudget, Spending, SpendingLimit, show_usd

TODAY = date(2026, 11, 19)
SONNET = "claude-sonnet-4-5"


def usage(input: int, output: int, model: str = SONNET) -> TokenUsage:
    return TokenUsage(model=model, input=input, output=output)


def test_a_session_ends_by_the_first_budget_that_is_reached() -> None:
    book = BudgetBook()
    book.add(ScopedBudget(scope="run", limit=SpendingLimit(usd=Decimal("0.02"))))
    book.add(ScopedBudget(scope="step:a", limit=SpendingLimit(tokens=1500)))
    a, b = ("run", "step:a", "session:1"), ("run", "step:b", "session:2")

    book.spend(a, "anthropic", usage(1000, 499), TODAY)
    assert book.find_reached(a) is None
    book.spend(a, "anthropic", usage(1, 0), TODAY)
    reached = book.find_reached(a)
    assert reached is not None
    assert reached.why_stopped == "the budget of step a is reached: 1,500 of 1,500 tokens"
    assert book.find_reached(b) is None, "the others go on"
    book.spend(b, "anthropic", usage(1000, 499), TODAY)
    assert (run := book.find_reached(b)) is not None
    assert run.why_stopped == "the budget of the run is reached: $0.02 of $0.02"
    assert run.spent.usd == Decimal("0.020973")


def test_a_resumed_run_goes_on_counting() -> None:
    spent = Spending(usd=Decimal("4.99"), tokens=10)
    book = BudgetBook()
    book.add(ScopedBudget(scope="run", limit=SpendingLimit(usd=Decimal(5)), spent=spent))
    book.add(ScopedBudget(scope="run", limit=SpendingLimit(usd=Decimal(5))))

    book.spend(("run",), "anthropic", usage(0, 1000), TODAY)

    assert book.find_reached(("run",)) is not None


def test_a_model_without_a_price_is_not_asked_under_a_budget_of_dollars() -> None:
    book = BudgetBook()
    book.add(ScopedBudget(scope="run", limit=SpendingLimit(usd=Decimal(5))))
    book.add(ScopedBudget(scope="step:t", limit=SpendingLimit(tokens=5)))

    refused = book.refuse_unpriced(("run",), "openai", "my-model", TODAY)

    assert refused is not None
    assert "'my-model' has no price in the table of 2026-" in refused
    assert book.refuse_unpriced(("step:t",), "openai", "my-model", TODAY) is None
    assert book.refuse_unpriced(("run",), "anthropic", SONNET, TODAY) is None


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), max_size=40))
def test_sums_are_exact_whatever_the_order(parts: list[tuple[int, int]]) -> None:
    book = BudgetBook()
    book.add(ScopedBudget(scope="run", limit=SpendingLimit(usd=Decimal(10**6))))
    costs = [book.spend(("run",), "anthropic", usage(*part), TODAY) for part in parts]
    (budget,) = book.budgets(("run",))

    assert budget.spent == sum(reversed(costs), Spending())
    assert Spending.of(budget.spent.document()) == budget.spent


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "nan", "inf", "1e99", "5 EUR", "1,000"])
def test_a_budget_that_is_no_amount_is_a_mistake(text: str) -> None:
    with pytest.raises(BadInput, match="budget"):
        SpendingLimit.parse(text)


def test_a_budget_is_read_and_shown_as_people_write_it() -> None:
    assert SpendingLimit.parse("5").usd == SpendingLimit.parse("$5").usd == 5
    assert SpendingLimit.parse("0.50").describe(Spending()) == "$0.00 of $0.50"
    assert show_usd(Decimal("0.0042")) == "$0.004200"
    assert show_usd(Decimal("1234.5")) == "$1,234.50"
    limit = SpendingLimit(usd=Decimal("1.50"), tokens=7)
    assert SpendingLimit.of(limit.document()) == limit
    with pytest.raises(BadInput):
        SpendingLimit(tokens=0)
