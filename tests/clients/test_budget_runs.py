"""Budgets of real runs: who reaches one ends with its work kept, the others go on, and the sum is exact."""

import json
from decimal import Decimal
from typing import Any

from tests.cli import warm
from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, Scene, workers
from tests.clients.test_continued import cut_off, resumed
from tests.conftest import git

IN, OUT = 1000, 500
TURN = (Decimal(IN) * 3 + Decimal(OUT) * 15) / 1_000_000
"""What a turn costs by the list price of the model."""
TALK = f"[[s:both file=mine.txt in={IN} out={OUT}]]"
"""Three turns: a file, a command, and a word at the end."""


def test_a_budget_ends_its_agents_at_a_turn_and_the_others_go_on(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    here.write(
        [
            {"name": "poor", "prompt": TALK, "budget": {"usd": float(TURN)}, "retry": 2},
            {"name": "rich", "prompt": TALK, "budget": {"tokens": 1_000_000}},
        ]
    )

    report = here.run()

    poor, rich = workers(report)["poor"], workers(report)["rich"]
    assert (poor["status"], poor["limit"], poor["attempts"]) == ("over_limit", "budget", 1), poor
    assert poor["error"] == "the budget of step poor is reached: $0.01 of $0.01"
    assert git(here.repo, "show", f"{poor['branch']}:mine.txt"), "its turn was carried out, and the work is kept"
    assert rich["status"] == "succeeded", rich
    log = here.model.usage
    assert (report["usage"]["input_tokens"], report["usage"]["output_tokens"]) == (log.input, log.output)
    cost = (Decimal(log.input) * 3 + Decimal(log.output) * 15) / 1_000_000
    assert Decimal(str(round(report["usage"]["cost_usd"], 9))) == cost
    assert poor["usage"]["cost_usd"] == float(TURN)
    assert here.left() == []


def retry(here: Scene, *words: str) -> dict[str, Any]:
    """Run the failed agents again, and give the report."""
    said = warm.ran(("retry", "--json", *words), cwd=here.repo, env=here.environ(), timeout=90)
    assert said.out, said.err
    report: dict[str, Any] = json.loads(said.out)
    return report


def test_a_run_that_is_retried_goes_on_counting_and_may_be_given_more(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    here.write([{"name": "w", "prompt": TALK}])

    first = here.run("--budget", str(float(TURN * 2)))
    asked = len(here.model.requests)
    again = retry(here)
    after = len(here.model.requests)
    more = retry(here, "--budget", "1")

    assert workers(first)["w"]["limit"] == "budget"
    assert workers(again)["w"]["limit"] == "budget"
    assert after == asked, "nothing was left to ask with"
    assert workers(more)["w"]["status"] == "succeeded", more


def test_what_a_killed_agent_spent_counts_when_its_run_is_resumed(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    cut_off(here)
    asked = len(here.model.requests)
    spent = (Decimal(here.model.usage.input) * 3 + Decimal(here.model.usage.output) * 15) / 1_000_000

    report = resumed(here, "--budget", str(float(spent)))

    worker = workers(report)["w"]
    assert (worker["status"], worker["limit"]) == ("over_limit", "budget"), worker
    assert len(here.model.requests) == asked, "nothing was left to ask with"
    assert git(here.repo, "show", f"{worker['branch']}:half.txt") == "half"


def test_a_budget_that_nobody_would_count_is_refused(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    here.write([{"name": "w", "prompt": TALK, "network": "host"}])

    refused = warm.ran(("run", "shoal.yaml", "--budget", "5"), cwd=here.repo, env=here.environ(), timeout=60)

    assert refused.code == 5
    assert "give that agent `network: gateway`" in refused.err
    assert here.model.requests == []
