"""Real clients whose model refuses them for its rate limit: the gateway waits, and nobody is taken for hung."""

from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, workers


def test_an_agent_that_is_held_back_is_shown_as_waiting_and_not_as_hung(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    here.write([{"name": "held", "prompt": "[[s:err429once retry=6 in=10 out=2]]", "stall_timeout": 3}])

    held = workers(here.run())["held"]

    assert held["status"] == "no_changes", held
    assert held["output"] == "Recovered.\n"
    assert held["duration_seconds"] > 6
    assert here.logs().count("waiting for the rate limit of anthropic") >= 2, "it is told again while it lasts"
    assert len(here.model.requests) == 2, "one refusal, one answer, and no try of the client's own"
