"""Real clients whose model refuses them for its rate limit: the gateway waits, and nobody is taken for hung."""

import json

from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, workers


def test_an_agent_that_is_held_back_is_shown_as_waiting_and_not_as_hung(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    prompts = {"held": "[[s:err429once retry=6 in=10 out=2]]", "free": "[[s:text in=5 out=1]]"}
    here.write([{"name": name, "prompt": text, "stall_timeout": 3} for name, text in prompts.items()])

    report = here.run()

    found = workers(report)
    assert {name: worker["status"] for name, worker in found.items()} == dict.fromkeys(prompts, "no_changes"), found
    assert found["held"]["output"] == "Recovered.\n"
    assert found["held"]["duration_seconds"] > 6
    log = [json.loads(line) for line in here.logs().splitlines()]
    waits = [event for event in log if "waiting for the rate limit of anthropic" in json.dumps(event)]
    assert len(waits) >= 2, "it is told again while it lasts"
    assert len(here.model.requests) == 3, "one refusal, two answers, and no try of the client's own"
