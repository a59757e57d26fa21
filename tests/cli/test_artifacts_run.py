"""Artifacts from the command line: declared by a step, checked, and passed on to the next."""

import json
from pathlib import Path

import pytest

from tests.cli.flows import Ran, ran
from tests.conftest import make_repo

# Read what was handed on, and try to change it.
READ = r"""
cd "$SHOAL_INPUTS_DIR"
find . -type f | sort
for file in one/plan.json one/notes.txt three/part.json three/words.txt; do echo "== $file"; cat "$file"; done
( echo spoilt > one/plan.json ) 2> /dev/null || echo "== shut"
cp "$SHOAL_PROMPT_FILE" "$SHOAL_WORKSPACE_PATH/asked"
"""
PART = 'echo "{\\"n\\": $SHOAL_WORKER_INDEX}" > part.json; echo "text $SHOAL_WORKER_INDEX" > part.txt'
HANDED_ON = """
steps:
  - name: one
    agent: do
    prompt: 'echo "{\\"title\\": \\"The {{ input.what }}\\", \\"tasks\\": [1, 2]}" > plan.json; echo remember > notes.txt'
    output_artifacts: [{name: plan, path: plan.json, type: json}, notes.txt]
  - name: three
    agent: part
    prompt: go
    concurrency: 3
    output_artifacts: [{name: part, path: part.json}, {name: words, path: part.txt}]
  - {name: read, needs: [one, three], agent: read, prompt: "Do {{ artifacts.one.plan.title }} in {{ steps.three.artifacts.part | length }}"}
  - name: only
    needs: [one, three]
    agent: do
    prompt: 'find "$SHOAL_INPUTS_DIR" -type f; cp "$SHOAL_PROMPT_FILE" asked'
    inject_artifacts: [{step: one, artifact: plan, as: blueprint}]
  - {name: plain, needs: one, command: 'cat > stdin; cat "$SHOAL_INPUTS_DIR/one/notes.txt" >> stdin'}
"""
WRONG = """
steps:
  - {name: missing, agent: do, prompt: 'echo x > other.json', output_artifacts: [plan.json]}
  - {name: empty, agent: do, prompt: 'echo x > x; : > plan.json', output_artifacts: [plan.json]}
  - {name: no-json, agent: do, prompt: 'echo "{not json" > plan.json', output_artifacts: [plan.json]}
  - {name: link, agent: do, prompt: 'ln -s /etc/passwd plan.txt', output_artifacts: [plan.txt]}
  - {name: spared, agent: do, prompt: 'echo x > x', output_artifacts: [{path: plan.json, required: false}]}
  - {name: ignored, agent: do, prompt: 'echo there > kept.log', output_artifacts: [kept.log]}
  - {name: after-missing, needs: missing, agent: do, prompt: 'echo x > x'}
  - {name: after-ignored, needs: ignored, agent: do, prompt: 'cat "$SHOAL_INPUTS_DIR/ignored/kept.log"'}
  - name: second-time
    agent: do
    prompt: 'cp "$SHOAL_PROMPT_FILE" asked; ! grep -q "is missin[g]" asked || echo "{}" > plan.json'
    output_artifacts: [{name: plan, path: plan.json}]
    retry: {max_attempts: 2, wait_seconds: 0}
"""


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One sandboxed run in which two steps read what one worker left, and three workers."""
    repo = make_repo(tmp_path_factory.mktemp("artifacts") / "repo")
    return ran(repo, HANDED_ON, "--input", "what=plan", runtime="", read=READ, part=PART)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of steps that do not leave what they declare."""
    repo = make_repo(tmp_path_factory.mktemp("artifacts") / "repo")
    (repo / ".git/info/exclude").write_text("*.log\n")
    return ran(repo, WRONG)


def read(handed: Ran) -> dict[str, str]:
    """What the agent read, by the file; the first is the list of all."""
    first, *rest = handed.worker("read")["output"].split("== ")
    return {"": first, **{name: text for name, _, text in (part.partition("\n") for part in rest)}}


def test_a_file_of_one_worker_is_handed_on_as_it_is(handed: Ran) -> None:
    assert handed.said.code == 0, handed.said
    assert json.loads(read(handed)["one/plan.json"]) == {"title": "The plan", "tasks": [1, 2]}
    assert read(handed)["one/notes.txt"] == "remember\n"


def test_files_of_three_workers_are_made_one_in_their_order(handed: Ran) -> None:
    words = read(handed)["three/words.txt"]

    assert json.loads(read(handed)["three/part.json"]) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [line for line in words.splitlines() if line] == [
        line for index in range(3) for line in (f"## worker {index}", f"text {index}")
    ]


def test_an_agent_cannot_change_what_it_is_given(handed: Ran) -> None:
    assert "shut" in read(handed)


def test_what_is_handed_on_is_listed_in_the_prompt_and_not_quoted(handed: Ran) -> None:
    asked = handed.shown("read", "asked")

    assert asked.startswith("Do The plan in 3\n"), "a text may use what is in it"
    for file in ("one/plan.json", "one/notes.txt", "three/part.json", "three/words.txt", "three/aggregate.json"):
        assert f"- $SHOAL_INPUTS_DIR/{file} (" in asked
        assert f"./{file}\n" in read(handed)[""]
    assert "remember" not in asked


def test_a_step_may_name_what_it_wants_and_call_it_by_another_name(handed: Ran) -> None:
    (path,) = handed.worker("only")["output"].split()

    assert path.endswith("/one/blueprint.json")
    assert "- $SHOAL_INPUTS_DIR/one/blueprint.json (json, " in handed.shown("only", "asked")


def test_a_plain_command_is_given_the_files_and_nothing_to_read(handed: Ran) -> None:
    assert handed.shown("plain", "stdin") == "remember"


def test_the_report_says_where_the_copies_lie(handed: Ran) -> None:
    whole, one = handed["three"]["artifacts"], handed.worker("three", 1)["artifacts"]

    assert json.loads(Path(whole["part"]).read_text()) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert json.loads(Path(one["part"]).read_text()) == {"n": 1}
    assert Path(one["words"]).read_text() == "text 1\n"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("missing", "artifact plan: plan.json is missing"),
        ("empty", "artifact plan: plan.json is empty"),
        ("no-json", "artifact plan: plan.json is not JSON"),
        ("link", "artifact plan: plan.txt is a symbolic link"),
    ],
)
def test_what_is_not_left_as_declared_fails_the_step_and_the_work_is_kept(wrong: Ran, step: str, why: str) -> None:
    assert wrong.statuses[step] == "failed"
    assert why in wrong.worker(step)["error"]
    assert wrong.worker(step)["artifacts"] == {}
    assert len(wrong.tree(step)) > 6, "there is something more than the base"


def test_who_needs_an_artifact_that_is_missing_is_skipped(wrong: Ran) -> None:
    assert wrong.statuses["after-missing"] == "skipped"


def test_an_artifact_that_is_not_required_may_be_missing(wrong: Ran) -> None:
    assert wrong.statuses["spared"] == "succeeded"


def test_a_file_that_git_ignores_is_handed_on_all_the_same(wrong: Ran) -> None:
    assert wrong.worker("after-ignored")["output"] == "there\n"


def test_a_retry_is_told_of_the_artifact_that_was_missing(wrong: Ran) -> None:
    assert (wrong.statuses["second-time"], wrong.worker("second-time")["attempts"]) == ("succeeded", 2)
    assert "artifact plan: plan.json is missing" in wrong.shown("second-time", "asked")
