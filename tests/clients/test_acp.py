"""Agents that speak the Agent Client Protocol, driven for real behind the full wall, with a scripted model on loopback."""

import json
import subprocess
from dataclasses import dataclass

import pytest

from tests.cli.conftest import SHOAL
from tests.clients.conftest import MakeScene
from tests.clients.real import Real, interrupted, workers
from tests.conftest import git

HINT = "You may spawn up to 3 concurrent sub-agents or workers for this step."
SLOW = 240
"""Seconds: one that takes five on a machine of its own takes a minute on a busy one."""


@dataclass(frozen=True)
class Speaker(Real):
    """An agent of the protocol, by its command."""

    command: tuple[str, ...] = ()
    address: str = ""

    def agent(self, url: str) -> dict[str, object]:
        keys: dict[str, object] = {key: {"from": key} for key in self.keys}
        env = {**self.env, self.address: url, **keys}
        return {"adapter": "acp", "command": list(self.command), "env": env, "model": self.model}


GOOSE = Speaker(
    "goose",
    "gpt-5.6",
    ("OPENAI_API_KEY",),
    {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "gpt-4o",
        "OPENAI_BASE_PATH": "v1/chat/completions",
        "GOOSE_PROVIDER_SKIP_BACKOFF": "true",
    },
    command=("goose", "acp"),
    address="OPENAI_HOST",
)
CLAUDE = Speaker(
    "claude-agent-acp",
    "haiku",
    ("ANTHROPIC_API_KEY",),
    {"CLAUDE_CODE_MAX_RETRIES": "1"},
    command=("claude-agent-acp",),
    address="ANTHROPIC_BASE_URL",
)
each = pytest.mark.parametrize(
    "real",
    [GOOSE, pytest.param(CLAUDE, marks=[pytest.mark.clients, pytest.mark.timeout(SLOW)])],
    ids=["goose", "claude"],
)


@pytest.mark.deep
@each
def test_one_tool_is_allowed_and_another_denied(scene: MakeScene, real: Speaker) -> None:
    here = scene(real)
    step = {"name": "w", "prompt": "[[s:both in=100 out=20]]", "max_concurrent_agents": 3}
    here.write([step], permissions={"deny": ["Bash(echo *)"]})

    worker = workers(here.run(timeout=SLOW))["w"]

    assert worker["status"] == "succeeded", worker
    assert git(here.repo, "diff", "--name-only", "main", worker["branch"]) == "hello.txt"
    assert worker["output"].endswith("I will write it.\nI will run it.\nDone.\n")
    assert any("You are the tester of wells." in one and HINT in one for one in here.model.systems)
    assert here.model.requests[-1].model.startswith({"haiku": "claude-haiku"}.get(real.model, real.model))
    spent = worker["usage"]
    if real is CLAUDE:  # goose tells only what its last request took
        assert (spent["input_tokens"], spent["output_tokens"]) == (300, 60)
    assert spent["output_tokens"] > 0
    logs = subprocess.run([SHOAL, "logs", "--json"], cwd=here.repo, capture_output=True, text=True, check=True).stdout
    decided = [one for line in logs.splitlines() if "rule" in (one := json.loads(line))]
    assert {(one["subject"].partition("(")[0], one["rule"], one["allowed"]) for one in decided} >= {
        ("Write", "no rule", True),
        ("Bash", "Bash(echo *)", False),
    }
    assert here.left() == []


@each
def test_a_turn_that_is_cancelled_leaves_nobody_and_keeps_the_work(scene: MakeScene, real: Speaker) -> None:
    here = scene(real)

    worker = interrupted(here)

    assert worker["status"] == "cancelled", worker
    assert git(here.repo, "show", f"{worker['branch']}:half.txt") == "half"
    assert here.left() == []


@pytest.mark.deep
@each
def test_a_login_that_is_refused_and_a_model_that_cannot_be_asked_are_told(scene: MakeScene, real: Speaker) -> None:
    here = scene(real)
    here.write([{"name": name, "prompt": f"[[s:{name}]]"} for name in ("err401", "err400")])

    found = workers(here.run(timeout=SLOW))

    assert {name: one["status"] for name, one in found.items()} == {"err401": "failed", "err400": "failed"}, found
    assert "log in to it, or hand it a key" in found["err401"]["error"]
    assert "the script says 400" in found["err400"]["error"]
    assert here.left() == []
