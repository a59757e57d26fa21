"""Budgets as a file writes them: of a run, a step, a persona, and each session of an agent."""

from decimal import Decimal

import pytest

from shoal.model.budget import SpendingLimit
from shoal.model.plan import Plan, Step
from shoal.pipeline.load import parse
from shoal.pipeline.plan import plan
from shoal.pipeline.problems import BadDocument
from shoal.store.plans import decode_plan, encode_plan

TEXT = """
runtime: {budget: {usd: 5, tokens: 2000000}}
agents:
  mine: {adapter: claude, budget: {usd: 0.1}}
personas:
  tester: {agent: mine, budget: {tokens: 1000}}
steps:
  - {name: a, persona: tester, prompt: go, budget: {usd: 1.25}}
  - {name: b, agent: mine, prompt: go}
"""


def make(text: str) -> Plan:
    return plan(parse(text, "shoal.yaml"), environ={})


def test_budgets_are_read_and_recorded_exactly() -> None:
    found = make(TEXT)
    a, b = (step for step in found.steps if isinstance(step, Step))

    assert found.budget == SpendingLimit(usd=Decimal(5), tokens=2_000_000)
    assert a.task.budgets == {
        "step": SpendingLimit(usd=Decimal("1.25")),
        "persona:tester": SpendingLimit(tokens=1000),
        "session": SpendingLimit(usd=Decimal("0.1")),
    }
    assert b.task.budgets == {"session": SpendingLimit(usd=Decimal("0.1"))}
    assert decode_plan(encode_plan(found), {}) == found


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("{usd: 0}", "must be more than 0"),
        ("{usd: -1}", "must be more than 0"),
        ("{usd: .inf}", "finite"),
        ("{tokens: 0}", "at least 1"),
        ("{dollar: 5}", "usd"),
        ("{turns: 5}", "turns"),
        ("five", "mapping"),
    ],
)
def test_a_budget_that_allows_nothing_is_a_mistake(wrong: str, why: str) -> None:
    with pytest.raises(BadDocument, match=why):
        make(TEXT.replace("{usd: 1.25}", wrong))


def test_turns_are_counted_only_for_agents_in_process() -> None:
    with pytest.raises(BadDocument, match="`turns` goes only with"):
        make(TEXT.replace("{usd: 0.1}", "{turns: 5}"))
