"""`shoal run --pattern`: what users of GNU parallel expect, with sandboxed agents."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git

EVAL = "sh -c 'eval \"$(head -n 1)\"'"


def results(out: str) -> dict[str, dict[str, object]]:
    report = json.loads(out)
    return {step["step"]: step["worker_results"][0] for step in report["steps"]}


def test_tasks_come_from_a_file_of_lines_and_objects_in_the_order_of_their_needs(shoal: Shoal, repo: Path) -> None:
    lines = ["echo one > one", '{"name": "two", "prompt": "cat one > two", "deps": ["task-1"]}', ""]
    (repo / "tasks.jsonl").write_text("\n".join(lines))

    said = shoal("run", "--tasks", "tasks.jsonl", "--command", EVAL, "--json")

    assert said.code == 0, said.err
    found = results(said.out)
    assert list(found) == ["task-1", "two"]
    assert git(repo, "show", f"{found['two']['branch']}:two") == "one"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"name": "a", "prompt": "x", "deps": ["b"]}', '{"name": "b", "prompt": "x", "deps": ["a"]}'], " → "),
        (['{"name": "a", "prompt": "x", "deps": ["bb"]}', '{"name": "b", "prompt": "x"}'], "did you mean"),
        (['{"name": "a", "prompt": "x"}', '{"name": "a", "prompt": "y"}'], "two tasks are named 'a'"),
        (["fine", '{"prompt": "x"'], "t.jsonl:2:15: not a JSON object"),
        (["fine", '  {"promt": "x"}'], "t.jsonl:2:3: "),
        (["fine", "{}"], "t.jsonl:2:1: the prompt of a task is empty"),
        (['{"prompt": "x", "env": "A=b"}'], "t.jsonl:1:1: `env` of a task must be a mapping"),
        (['{"prompt": "x", "limits": 3}'], "t.jsonl:1:1: `limits` of a task must be a mapping"),
        (['{"prompt": "x", "context": {}}'], "t.jsonl:1:1: `context` of a task must be a text"),
        (['{"prompt": "x", "deps": [[]]}'], "t.jsonl:1:1: [] is not allowed in `deps`"),
        ([""], "contains no tasks"),
    ],
)
def test_bad_tasks_are_told_with_their_place_and_nothing_is_made(
    shoal: Shoal, repo: Path, lines: list[str], words: str
) -> None:
    (repo / "t.jsonl").write_text("\n".join(lines))

    said = shoal("run", "--tasks", "t.jsonl", "--command", "true")

    assert said.code == 2, said
    assert words in said.err
    assert not (repo / ".shoal").exists()


def test_a_race_ends_with_the_first_success(shoal: Shoal, repo: Path) -> None:
    tasks = ["--task", "exit 1", "--task", "echo w > w", "--task", "echo p > p; sleep 999"]

    said = shoal("run", *tasks, "--command", EVAL, "--pattern", "race", "--json")

    assert said.code == 0, said.err
    found = [result["status"] for result in results(said.out).values()]
    assert found == ["failed", "succeeded", "cancelled"]


def test_gather_and_quorum_judge_the_whole(shoal: Shoal) -> None:
    good, bad = ("--task", "echo w > w"), ("--task", "exit 1")

    assert shoal("run", *good, *bad, "--command", EVAL, "--pattern", "gather").code == 1
    assert shoal("run", *good, *good, *bad, "--command", EVAL, "--pattern", "quorum=2").code == 0
    assert shoal("run", *good, *bad, *bad, "--command", EVAL, "--pattern", "quorum=2").code == 1
    assert shoal("run", *good, "--command", EVAL, "--pattern", "quorum=2").code == 2
    assert "did you mean" in shoal("run", *good, "--command", EVAL, "--pattern", "racing").err


def test_so_many_of_each_agent_do_the_same_task(shoal: Shoal, repo: Path) -> None:
    agents = {name: {"adapter": "command", "command": ["sh", "-c", f"echo {name} > w"]} for name in ("one", "two")}
    (repo / "shoal.yaml").write_text(json.dumps({"agents": agents}))

    said = shoal("run", "--task", "do it", "--agents", "one:2,two", "--json")

    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert [(step["step"], step["total_workers"]) for step in report["steps"]] == [("task-1-one", 2), ("task-1-two", 1)]
    assert shoal("run", "--task", "x", "--agents", "one:x").code == 2


def test_further_attempts_are_counted_and_kept(shoal: Shoal, repo: Path) -> None:
    said = shoal("run", "--task", "echo w > w; exit 1", "--command", EVAL, "--retries", "1", "--json")

    assert said.code == 1
    assert results(said.out)["task-1"]["attempts"] == 2
    assert len(git(repo, "for-each-ref", "refs/heads/agent").splitlines()) == 2


def test_after_the_deadline_the_work_is_kept_and_the_code_is_124(shoal: Shoal, repo: Path) -> None:
    said = shoal("run", "--task", "echo w > w; sleep 999", "--command", EVAL, "--deadline", "3", "--json")

    assert said.code == 124, said
    found = results(said.out)["task-1"]
    assert found["status"] == "cancelled"
    assert git(repo, "show", f"{found['branch']}:w") == "w"


@pytest.mark.deep
def test_a_second_interrupt_does_not_wait_for_a_stubborn_agent(repo: Path, shoal: Shoal) -> None:
    stubborn = "trap '' TERM INT; echo ready; while :; do sleep 1; done"
    words = ["run", "--task", stubborn, "--command", EVAL, "--events"]
    with subprocess.Popen(
        [SHOAL, *words], cwd=repo, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert next((line for line in running.stdout if "ready" in line and '"Output"' in line), None)
        running.send_signal(signal.SIGINT)
        assert "stopping" in next(iter(running.stderr))
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)

    assert running.returncode == 130
    assert "shoal: killed; " in err, "and did not wait for the grace of the agent"
    left = json.loads(shoal("status", "--json").out)
    assert (left["status"], left["steps"][0]["worker_results"][0]["status"]) == ("cancelled", "interrupted")
    assert "`shoal clean` or the next run recovers" in shoal("status").out
    assert "`shoal clean` recovers" in shoal("diff").err
