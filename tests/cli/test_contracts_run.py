"""Contracts from the command line: each type met and unmet, and what that means for the step and its dependants."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shoal
from tests.cli.flows import Ran, ran, written
from tests.conftest import git, make_repo

REVIEWERS = """
  kind: {adapter: scripted, script: [{say: '{"verdict": "pass", "reasons": []}'}]}
  strict: {adapter: scripted, script: [{say: '{"verdict": "fail", "reasons": ["it is too short"]}'}]}
personas:
  critic: {agent: strict, system_prompt: You are hard to please.}
"""
CONTRACTS = """
      - {type: json_schema, path: out.json, schema: {type: object, required: [title]}}
      - {type: json_schema, artifact: left, schema_file: title.json}
      - {type: test_suite, command: [sh, -c, "grep -q right result.txt || { echo found it wrong; exit 4; }"]}
      - {type: command, command: "test -s result.txt && grep right result.txt"}
      - {type: non_empty_file, path: result.txt}
      - {type: source_diff, glob: "src/**", exclude: ["src/docs/**"]}
      - {type: no_test_deletions}
"""
STEPS = f"""
steps:
  - name: good
    agent: do
    prompt: 'mkdir src; echo 1 > src/a.py; echo right > result.txt; echo "{{\\"title\\": \\"x\\"}}" | tee out.json > left.json'
    output_artifacts: [{{name: left, path: left.json}}]
    contracts: {CONTRACTS}
      - {{type: agent_review, agent: kind, criteria: It is long enough.}}
  - name: bad
    agent: do
    prompt: 'mkdir -p src/docs; echo > src/docs/a; echo > result.txt; echo "{{\\"titel\\": 1}}" | tee out.json > left.json; rm test_it.py'
    output_artifacts: [{{name: left, path: left.json}}]
    contracts: {CONTRACTS}
      - {{type: agent_review, persona: critic, criteria: It is long enough.}}
  - {{name: after-good, needs: good, agent: do, prompt: 'cat result.txt > seen'}}
  - {{name: after-bad, needs: bad, agent: do, prompt: 'echo x > x'}}
"""
TOLD = [
    ("json_schema", '`out.json` does not fit the schema: "title" is a required property'),
    ("json_schema", 'the artifact left does not fit the schema: "title" is a required property'),
    ("test_suite", "found it wrong"),
    ("command", "it exited with 1"),
    ("non_empty_file", "`result.txt` is empty or blank"),
    ("source_diff", "0 files of src/** without src/docs/** are changed"),
    ("no_test_deletions", "test files are deleted: test_it.py"),
    ("agent_review", "the reviewer (persona critic) rejects it: it is too short"),
]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of two steps with contracts of all types: the first meets all, the second none."""
    repo = make_repo(tmp_path_factory.mktemp("contracts") / "repo")
    (repo / "test_it.py").write_text("def test_it() -> None: ...\n")
    (repo / "title.json").write_text('{"type": "object", "required": ["title"]}')
    git(repo, "add", "test_it.py")
    git(repo, "commit", "-qm", "a test")
    return ran(repo, STEPS, more=REVIEWERS)


def checks(done: Ran, step: str, index: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = done.worker(step, index)["contracts"]
    return found


@pytest.mark.parametrize("place", range(len(TOLD)), ids=[f"{number}-{kind}" for number, (kind, _) in enumerate(TOLD)])
def test_each_type_is_met_or_not_and_says_why(held: Ran, place: int) -> None:
    kind, why = TOLD[place]
    met, unmet = checks(held, "good")[place], checks(held, "bad")[place]

    assert met == {"type": kind, "passed": True, "warning": False, "message": "met"}
    assert (unmet["type"], unmet["passed"], unmet["warning"]) == (kind, False, False)
    assert why in unmet["message"]


def test_work_that_does_not_meet_them_has_failed_with_all_reasons_and_is_kept(held: Ran) -> None:
    good, bad = held.worker("good"), held.worker("bad")

    assert held.statuses == {"good": "succeeded", "bad": "failed", "after-good": "succeeded", "after-bad": "skipped"}
    assert (held.said.code, held.report["status"]) == (1, "degraded")
    assert (good["error"], bad["exit_code"]) == (None, 0)
    assert all(why in bad["error"] for _, why in TOLD)
    assert "src/docs/a" in held.tree("bad"), "the work is there to look at"
    assert held.shown("after-good", "seen") == "right"


def test_one_that_only_warns_is_told_and_the_work_counts(repo: Path) -> None:
    done = ran(
        repo,
        """
        steps:
          - name: work
            agent: do
            prompt: echo x > x
            contracts:
              - {type: non_empty_file, path: y, on_failure: warn}
              - {type: command, command: "exit 3", must_pass: false}
              - {type: non_empty_file, path: x}
        """,
    )

    assert (done.said.code, done.workers("work")) == (0, ["succeeded"])
    assert [(one["passed"], one["warning"]) for one in checks(done, "work")] == [
        (False, True),
        (False, True),
        (True, False),
    ]


def test_a_contract_is_checked_behind_the_agents_own_wall_on_what_was_committed(repo: Path, tmp_path: Path) -> None:
    """What the agent left out of its commit is not there, and nothing outside can be reached."""
    (tmp_path / "secret").write_text("secret")
    (repo / ".gitignore").write_text("*.tmp\n")
    git(repo, "add", ".gitignore")
    git(repo, "commit", "-qm", "ignore")
    command = (
        f"test ! -e left.tmp && test ! -e {tmp_path}/secret && ! touch {repo}/README.md && echo changed > work.txt"
    )

    done = ran(
        repo,
        f"""
        steps:
          - name: work
            agent: do
            prompt: echo x > work.txt; echo x > left.tmp
            contract: {{type: command, command: "{command}"}}
        """,
        runtime="",
    )

    assert done.said.code == 0, done.worker("work")
    assert done.shown("work", "work.txt") == "x", "what a check changes is thrown away"


def test_a_type_that_nobody_knows_is_an_error_at_its_place(repo: Path, shoal: Shoal) -> None:
    keys = "agent: do\n    prompt: go\n    contract: {type: json_shema, path: x}\n"
    written(repo, f"steps:\n  - name: x\n    {keys}")

    said = shoal("run", "p.yaml")

    assert said.code == 2
    assert "p.yaml:9:22: " in said.err
    assert "json_schema" in said.err
    assert not (repo / ".shoal").exists()


REVIEWER = """
  says: {adapter: command, command: [sh, -c, 'printf %s "{\\"verdict\\": \\"fail\\", \\"reasons\\": [\\"$(cat "$SHOAL_SYSTEM_PROMPT_FILE") $OF\\"]}"']}
personas:
  critic: {agent: says, system_prompt: 'I look at {{ step.name }}', env: {OF: 'of {{ run.pipeline }}'}}
"""


def test_the_persona_of_a_reviewer_is_filled_in_too(repo: Path) -> None:
    steps = "steps: [{name: a, command: 'echo x > x', contract: {type: agent_review, persona: critic, criteria: good}}]"

    assert ran(repo, steps, more=REVIEWER).worker("a")["error"].endswith("rejects it: I look at a of p")
