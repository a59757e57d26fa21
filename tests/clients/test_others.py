"""Gemini, Copilot, opencode and aider, each driven for real behind the full wall, with a scripted model on loopback."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tests.clients.conftest import MakeScene
from tests.clients.real import Real, Scene, workers
from tests.clients.test_continued import cut_off, resumed
from tests.conftest import git

PERSONA, HINT = "You are the tester of wells.", "You may spawn up to 3 concurrent sub-agents or workers for this step."
SLOW = 240
"""Seconds: one that takes three on a machine of its own takes thirty on a busy one."""


@dataclass(frozen=True)
class Other(Real):
    """A client with what its user has set: *variables* and *files* of the home, where `{url}` is the model's address."""

    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, object] = field(default_factory=dict)
    login: str = ""
    upstreams: Mapping[str, object] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, object]:
        return {"gateway": {"upstreams": self.upstreams}} if self.upstreams else {}

    def environ(self, url: str) -> dict[str, str]:
        return {name: value.format(url=url) for name, value in self.variables.items()}


PROVIDER = {"baseURL": "{url}/v1", "apiKey": "{env:OPENAI_API_KEY}"}
LOOPBACK = {
    "npm": "@ai-sdk/openai-compatible",
    "options": PROVIDER,
    "models": {"well": {"name": "Well", "temperature": True}},
}
GEMINI = Other(
    "gemini",
    "gemini-2.5-flash",
    ("GEMINI_API_KEY",),
    variables={"GEMINI_API_KEY": "dummy-key-of-gemini", "GOOGLE_GEMINI_BASE_URL": "{url}"},
    files={".gemini/settings.json": {"security": {"auth": {"selectedType": "gemini-api-key"}}}},
    login="GEMINI_API_KEY",
)
COPILOT = Other(
    "copilot",
    "well",
    ("COPILOT_PROVIDER_API_KEY",),
    variables={
        "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
        "COPILOT_PROVIDER_API_KEY": "dummy-key-of-copilot",
        "COPILOT_OFFLINE": "true",
    },
    login="COPILOT_PROVIDER_API_KEY",
)
OPENCODE = Other(
    "opencode",
    "loopback/well",
    ("OPENAI_API_KEY",),
    {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
    variables={"OPENAI_API_KEY": "dummy-key-of-opencode"},
    files={".config/opencode/opencode.json": {"provider": {"loopback": LOOPBACK}}},
    login="opencode auth login",
    upstreams={"loopback": {"url": "{url}/v1", "format": "openai", "key": {"from": "OPENAI_API_KEY"}}},
)
AIDER = Other(
    "aider",
    "openai/well",
    ("OPENAI_API_KEY",),
    variables={"OPENAI_API_KEY": "dummy-key-of-aider", "OPENAI_API_BASE": "{url}/v1"},
    login="OPENAI_API_KEY",
)
EVERY = (GEMINI, COPILOT, OPENCODE, AIDER)

pytestmark = [pytest.mark.clients, pytest.mark.timeout(2 * SLOW)]
each = pytest.mark.parametrize("real", EVERY, ids=[one.name for one in EVERY])
with_tools = pytest.mark.parametrize("real", EVERY[:3], ids=[one.name for one in EVERY[:3]])


def prepared(here: Scene, real: Other) -> Scene:
    """Lay what the user has into the home."""
    for place, content in real.files.items():
        file = here.repo.parent / "user" / place
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(content).replace("{url}", here.model.url))
    return here


@each
def test_one_turn_brings_its_file_to_its_branch(scene: MakeScene, real: Other) -> None:
    here = prepared(scene(real), real)
    kind = "wholefile" if real is AIDER else "both"
    prompt = f"write [[s:{kind} file=well.txt content=deep%0A in=1100 out=7]]"
    here.write([{"name": "dig", "prompt": prompt, "max_concurrent_agents": 3}])

    report = here.run(timeout=SLOW)

    assert report["status"] == "succeeded", report
    assert report["wall"].startswith("bubblewrap")
    worker = workers(report)["dig"]
    files = git(here.repo, "diff", "--name-only", "main", worker["branch"]).splitlines()
    assert files == (["well.txt"] if real is AIDER else ["shell.txt", "well.txt"])
    assert git(here.repo, "show", f"{worker['branch']}:well.txt") == "deep"
    spent = {"input_tokens": here.model.usage.input, "output_tokens": here.model.usage.output}
    assert {name: worker["usage"].get(name) for name in spent} == spent
    assert here.left() == []


@each
def test_the_model_is_told_who_it_is_where_the_client_can(scene: MakeScene, real: Other) -> None:
    here = prepared(scene(real), real)
    here.write([{"name": "ask", "prompt": "tell [[s:text say=Deep.]]", "max_concurrent_agents": 3}])

    report = here.run(timeout=SLOW)

    assert workers(report)["ask"]["status"] == "no_changes", report
    assert "Deep." in workers(report)["ask"]["output"]
    for request in here.model.requests:
        told = json.dumps(request.body["messages"]) if real is AIDER else request.system
        assert PERSONA in told
        assert HINT in told
        assert request.model == real.model.rpartition("/")[2]


@pytest.mark.parametrize("real", [OPENCODE, AIDER], ids=("opencode", "aider"))
def test_the_model_is_asked_with_the_temperature_of_its_worker(scene: MakeScene, real: Other) -> None:
    here = prepared(scene(real), real)
    vary = {"temperature": [0.25, 0.75]}
    here.write([{"name": "ask", "prompt": "tell [[s:text say=Deep.]]", "concurrency": 2, "vary": vary}])

    report = here.run(timeout=SLOW)

    assert report["status"] == "succeeded", report
    assert {request.body.get("temperature") for request in here.model.requests} == {0.25, 0.75}


@each
def test_a_refused_key_is_a_failure_that_names_what_to_do(scene: MakeScene, real: Other) -> None:
    here = prepared(scene(real), real)
    here.write([{"name": "ask", "prompt": "[[s:err401]]"}])

    worker = workers(here.run(timeout=SLOW))["ask"]

    assert worker["status"] == "failed"
    assert real.login in worker["error"]
    assert "401" in worker["error"]
    assert "\n" not in worker["error"]


@with_tools
def test_a_tool_that_is_denied_is_not_used(scene: MakeScene, real: Other) -> None:
    here = prepared(scene(real), real)
    step = {"name": "rm", "prompt": "[[s:shell cmd=cd%20.%20%26%26%20rm%20-f%20README.md]]"}
    here.write([step], permissions={"deny": ["Bash(rm *)"]})

    worker = workers(here.run(timeout=SLOW))["rm"]

    assert worker["status"] == "no_changes", worker
    assert "rm" in here.model.requests[-1].results[-1]


def test_an_opencode_that_was_killed_goes_on_in_its_conversation(scene: MakeScene) -> None:
    here = prepared(scene(OPENCODE), OPENCODE)
    cut_off(here, model_seconds=SLOW)
    asked = len(here.model.requests)

    worker = workers(resumed(here, seconds=SLOW))["w"]

    assert worker["status"] == "succeeded", worker
    assert any(note.startswith("continued its own conversation") for note in worker["notes"]), worker["notes"]
    seen = here.model.requests[asked].conversation.messages
    assert any("Dig the well." in message.text for message in seen if message.role == "user"), seen
    assert any("I will write it." in message.text for message in seen if message.role == "assistant"), seen
    assert git(here.repo, "show", f"{worker['branch']}:well.txt") == "deep"
    assert git(here.repo, "show", f"{worker['branch']}:half.txt") == "half"
    assert here.left() == []
