"""`max_concurrent_agents`, each acceptance point of its document: what the agents themselves were told."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from shoal.testing.model import ModelServer
from tests.cli.conftest import Shoal
from tests.cli.flows import Ran, ran, written
from tests.conftest import make_repo

ROOT = Path(__file__).parents[2]
HINT = "You may spawn up to {} concurrent sub-agents or workers for this step."
OFFER = "concurrent sub-agents"

# A `command` agent copies the file that it was given out of the box; where it was given none, it says so.
KEEP = 'cp "${SHOAL_SYSTEM_PROMPT_FILE:-/dev/null}" told; cp "$SHOAL_PROMPT_FILE" asked'
SCRIPTED = """
  scripted:
    adapter: scripted
    script: [{run: 'cp "${SHOAL_SYSTEM_PROMPT_FILE:-/dev/null}" told; cp "$SHOAL_PROMPT_FILE" asked'}]
personas:
  implementer: {agent: keep, system_prompt: You implement.}
  actor: {agent: scripted, system_prompt: You act.}
  bound: {agent: keep, system_prompt: You implement., permissions: {allowed_tools: [Read, Edit], deny: ["Bash(rm *)"]}}
"""
STEPS = """
pipelines:
  - name: my-pipeline
    steps:
      - {name: implement, persona: implementer, prompt: go, max_concurrent_agents: 3}
      - {name: unset, persona: implementer, prompt: go}
      - {name: one, persona: implementer, prompt: go, max_concurrent_agents: 1}
      - {name: zero, persona: implementer, prompt: go, max_concurrent_agents: 0}
      - {name: below, persona: implementer, prompt: go, max_concurrent_agents: -4}
      - {name: ten, persona: implementer, prompt: go, max_concurrent_agents: 10}
      - {name: many, persona: implementer, prompt: go, max_concurrent_agents: 99}
      - {name: no-persona, agent: keep, prompt: go, max_concurrent_agents: 2}
      - {name: acted, persona: actor, prompt: go, max_concurrent_agents: 4}
      - {name: acted-alone, persona: actor, prompt: go}
      - name: whole
        persona: bound
        prompt: go
        max_concurrent_agents: 5
        concurrency: 2
        contract: {type: non_empty_file, path: told}
"""
SKETCH = """\
pipelines:
  - name: my-pipeline
    steps:
      - name: implement
        persona: implementer
        max_concurrent_agents: 3
"""
MODEL = """
  claude: {adapter: python, model: "anthropic:claude-sonnet-5"}
personas:
  implementer: {agent: claude, system_prompt: You implement., permissions: {deny: [shell]}}
"""
ASKED = """
steps:
  - name: hinted
    persona: implementer
    prompt: "say one"
    max_concurrent_agents: 3
    contract: {type: non_empty_file, path: README.md}
  - {name: plain, persona: implementer, prompt: "say two", max_concurrent_agents: 1}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of steps with the field, without it, and with values that mean nothing."""
    repo = make_repo(tmp_path_factory.mktemp("seed") / "repo")
    return ran(repo, STEPS, more=SCRIPTED, keep=KEEP)


def test_with_more_than_one_the_agents_system_prompt_has_the_hint(done: Ran) -> None:
    assert done.said.code == 0, done.said.err
    assert done.shown("implement", "told").splitlines() == ["You implement.", "", "## Concurrency", "", HINT.format(3)]
    assert HINT.format(2) in done.shown("no-persona", "told"), "also where nobody has a role"


def test_unset_or_not_more_than_one_there_is_no_hint(done: Ran) -> None:
    for step in ("unset", "one", "zero", "below"):
        assert done.shown(step, "told") == "You implement.", step


def test_the_hint_is_capped_at_ten_and_that_is_said(done: Ran) -> None:
    assert HINT.format(10) in done.shown("many", "told")
    assert [note for note in done.report["notes"] if "many" in note and "99" in note and "10" in note]


def test_exactly_ten_is_within_the_cap(done: Ran) -> None:
    assert HINT.format(10) in done.shown("ten", "told")
    assert [note for note in done.report["notes"] if "step ten" in note] == []


def test_the_sketch_is_answered_with_the_lines_to_add_and_runs_with_them(repo: Path, shoal: Shoal) -> None:
    (repo / "p.yaml").write_text(SKETCH)
    refused = shoal("run", "p.yaml")
    added = f"{SKETCH}        prompt: go\n"
    keep = json.dumps({"adapter": "command", "command": ["sh", "-c", KEEP]})
    personas = "personas: {implementer: {agent: keep, system_prompt: You implement.}}"
    (repo / "p.yaml").write_text(f"{added}agents: {{keep: {keep}}}\n{personas}\n")
    accepted = shoal("run", "p.yaml", "--json")

    assert refused.code == 2
    assert refused.err.splitlines()[0].startswith("p.yaml:4:9: `prompt` or `exec` is missing; ")
    assert "p.yaml:5:18: no persona named 'implementer'" in refused.err
    assert "max_concurrent_agents" not in refused.err
    assert accepted.code == 0, accepted.err
    assert HINT.format(3) in Ran(repo, accepted, json.loads(accepted.out)).shown("implement", "told")


def test_each_step_starts_with_a_fresh_context(repo: Path) -> None:
    """What the first step left in its home, and what it was asked, the second does not have."""
    look = 'echo "$SHOAL_SESSION $HOME $TMPDIR"; ls -A "$HOME" "$TMPDIR"; cat "$SHOAL_PROMPT_FILE"'
    done = ran(
        repo,
        """
        steps:
          - {name: first, agent: leave, prompt: the first question}
          - {name: second, needs: first, agent: look, prompt: the second question}
        """,
        runtime="",
        leave='echo "$SHOAL_SESSION"; echo x > work.txt; touch "$HOME/memory-of-first" "$TMPDIR/memory-of-first"; ls "$HOME"',
        look=look,
    )
    first, second = (done.worker(step)["output"] for step in ("first", "second"))

    assert done.statuses == {"first": "succeeded", "second": "succeeded"}
    assert "memory-of-first" in first
    assert "memory-of-first" not in second
    assert "first question" not in second
    assert "second question" in second
    assert second.split()[0] != first.split()[0], "another session"


def test_it_reaches_a_scripted_agent_as_well(done: Ran) -> None:
    assert HINT.format(4) in done.shown("acted", "told")
    assert done.shown("acted-alone", "told") == "You act."


def test_it_stands_after_contract_compliance_and_before_the_restrictions(done: Ran) -> None:
    """All workers of a concurrent step are told the same: how many there are of them is another thing."""
    first, second = (done.shown("whole", "told", index) for index in range(2))

    assert re.findall(r"^## .*", first, re.MULTILINE) == ["## Contract compliance", "## Concurrency", "## Restrictions"]
    assert first.startswith("You implement.\n")
    assert HINT.format(5) in first
    assert first == second


def test_the_prompt_itself_stays_as_it_was_written(done: Ran) -> None:
    assert {done.shown(step, "asked") for step in ("implement", "many", "whole", "acted", "unset")} == {"go"}


def system_of(server: ModelServer, words: str) -> str:
    """Find what the model was told beside the prompt that has *words*, in the request as it came over the wire."""
    (asked,) = (request for request in server.requests if words in request.user)
    return asked.system


async def test_it_is_in_the_request_that_a_model_really_receives(repo: Path, shoal: Shoal) -> None:
    async with ModelServer() as server:
        written(repo, ASKED, runtime="sandbox: none", more=MODEL)
        own = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
        said = await asyncio.to_thread(lambda: shoal("run", "p.yaml", **own))
    hinted, plain = system_of(server, "say one"), system_of(server, "say two")

    assert said.code == 0, said
    assert re.findall(r"^## .*", hinted, re.MULTILINE) == [
        "## Contract compliance",
        "## Concurrency",
        "## Restrictions",
    ]
    assert HINT.format(3) in hinted
    assert OFFER not in plain
    assert "## Restrictions" in plain


@pytest.mark.parametrize("value", ["2.5", "many", "true", "[2]"])
def test_what_is_no_whole_number_is_refused_at_its_place(repo: Path, shoal: Shoal, value: str) -> None:
    written(repo, f"steps:\n  - name: x\n    agent: do\n    prompt: go\n    max_concurrent_agents: {value}\n")

    said = shoal("run", "p.yaml")

    assert said.code == 2
    assert said.err.startswith(f"p.yaml:{len((repo / 'p.yaml').read_text().splitlines())}:28: ")
    assert not (repo / ".shoal").exists()


def test_the_key_is_in_the_reference_and_the_three_levels_are_told_apart() -> None:
    pages = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    levels = ("max_concurrent_workers", "concurrency", "max_concurrent_agents")

    assert "| `max_concurrent_agents` |" in pages["yaml.md"]
    told = [name for name, text in pages.items() if name != "yaml.md" and all(f"`{one}" in text for one in levels)]
    assert told, "one page has all three beside each other"
