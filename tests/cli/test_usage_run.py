"""The model usage of agents, added up: every attempt, round, review and judgement once."""

import json

import pytest

from tests.cli.conftest import shoal_in
from tests.cli.flows import Ran, ran
from tests.conftest import make_repo

MINDS = """
  brain: {adapter: python, model: scripted, replies: [{write: {path: a.txt, content: hi}}, done]}
  idle: {adapter: python, model: scripted, replies: [done]}
  critic: {adapter: python, model: scripted, replies: ['{"verdict": "pass", "reasons": []}']}
  judge: {adapter: python, model: scripted, replies: ['{"ranking": [0, 1]}']}
"""
SPENDING = """
steps:
  - {name: plain, agent: brain, prompt: go}
  - {name: twice, agent: idle, prompt: go, expect: changes, retry: {max_attempts: 2, wait_seconds: 0}}
  - {name: reviewed, agent: brain, prompt: go, contract: {type: agent_review, agent: critic, criteria: It is short.}}
  - {name: pick, agent: brain, prompt: go, concurrency: 2, select: {by: agent, agent: judge}}
  - {name: rounds, agent: brain, prompt: go, loop: {max: 2, until: "loop.round == 2"}}
"""


@pytest.fixture(scope="module")
def spending(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of agents with models."""
    return ran(make_repo(tmp_path_factory.mktemp("spending") / "repo"), SPENDING, more=MINDS)


def spent(done: Ran, step: str) -> int:
    return sum(one["usage"]["output_tokens"] for one in done[step]["worker_results"])


def test_a_run_has_spent_what_all_its_sessions_have(spending: Ran) -> None:
    assert (spending["twice"]["worker_results"][0]["attempts"], spending["rounds"]["rounds"]) == (2, 2)
    assert spent(spending, "reviewed") > spent(spending, "plain") > 0, "with what the reviewer spent"
    assert spent(spending, "pick_judge") > 0
    once = sum(spent(spending, step) for step in spending.statuses)
    assert spending.report["usage"]["output_tokens"] == once + spent(spending, "twice") + spent(spending, "rounds")


def test_the_same_is_told_later(spending: Ran) -> None:
    told = json.loads(shoal_in(spending.repo)("status", "--json").out)

    assert told["usage"] == spending.report["usage"]
