"""`shoal run` with agents, models, limits and a choice given on the command line."""

import json
from pathlib import Path

import pytest

from tests.cli import warm
from tests.cli.conftest import Shoal
from tests.cli.flows import CHEAP, written
from tests.cli.test_clients_missing import program
from tests.conftest import git

NUMBERED = "sh -c 'seq $SHOAL_WORKER_INDEX > n.txt'"
TWO_AGENTS = """\
agents:
  a: {adapter: command, command: ["sh", "-c", "echo a > who.txt"]}
  b: {adapter: command, command: ["sh", "-c", "echo b > who.txt"]}
"""


def test_the_best_of_several_is_the_smallest_that_passes(repo: Path, shoal: Shoal) -> None:
    done = shoal("run", "Write some numbers", "--command", NUMBERED, "--best-of", "4", "--select", "grep -q 2 n.txt",
                 "--sandbox", "none", "--json")  # fmt: skip

    (step,) = json.loads(done.out)["steps"]
    assert (done.code, step["selected"], step["total_workers"]) == (0, 2, 4)
    assert [row["index"] for row in step["ranking"]] == [2, 3, 0, 1]


def test_the_best_of_different_agents_names_the_agent_of_each(repo: Path, shoal: Shoal) -> None:
    (repo / "shoal.yaml").write_text(f"{TWO_AGENTS}runtime: {{{CHEAP}}}\n")

    done = shoal("run", "--task", "who are you", "--agents", "a:1,b:2", "--select", "grep -q b who.txt", "--json")

    (step,) = json.loads(done.out)["steps"]
    assert [worker["agent"] for worker in step["worker_results"]] == ["a", "b", "b"]
    assert (step["step"], step["selected"]) == ("task-1", 1)
    assert git(repo, "show", f"{step['worker_results'][1]['branch']}:who.txt") == "b"


def test_vary_gives_workers_different_agents(repo: Path, shoal: Shoal) -> None:
    steps = "steps: [{name: try, prompt: x, concurrency: 2, vary: [{agent: a}, {agent: b, model: big}]}]"
    (repo / "shoal.yaml").write_text(f"{TWO_AGENTS}runtime: {{{CHEAP}}}\n{steps}\n")

    planned = shoal("run", "--dry-run", "--json")
    done = shoal("run", "--json")

    assert json.loads(planned.out)["steps"][0]["agents"] == ["a", "b"]
    (step,) = json.loads(done.out)["steps"]
    found = [git(repo, "show", f"{worker['branch']}:who.txt") for worker in step["worker_results"]]
    assert (done.code, found) == (0, ["a", "b"])


def test_an_unknown_agent_in_vary_is_reported_at_its_place(repo: Path, shoal: Shoal) -> None:
    steps = "steps:\n- {name: try, prompt: x, concurrency: 2, vary: {agent: [a, bb]}}"
    (repo / "shoal.yaml").write_text(f"{TWO_AGENTS}{steps}\n")

    done = shoal("validate")

    assert (done.code, done.err) == (2, "shoal.yaml:5:60: no agent named 'bb'; did you mean `b`?\n")


def test_the_command_line_sets_model_memory_and_cpu_of_every_agent(repo: Path, shoal: Shoal) -> None:
    (repo / "shoal.yaml").write_text(f"{TWO_AGENTS}steps: [{{name: s, agent: a, prompt: x}}]\n")

    planned = shoal("run", "--dry-run", "--json", "--memory", "2G", "--cpu", "1.5")
    done = shoal("run", "tell your model", "--command", "sh -c 'echo $SHOAL_MODEL > m.txt'", "--model", "mighty",
                 "--sandbox", "none", "--json")  # fmt: skip

    limits = json.loads(planned.out)["steps"][0]["limits"]
    assert (limits["memory_mb"], limits["cpu_percent"], limits["time_seconds"]) == (2048, 150, 3600)
    (worker,) = json.loads(done.out)["steps"][0]["worker_results"]
    assert git(repo, "show", f"{worker['branch']}:m.txt") == "mighty"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--best-of", "3"), "--best-of needs `--select COMMAND`"),
        (("--select", "true"), "--select chooses among several results"),
        (("--best-of", "1", "--select", "true"), "--best-of must be from 2 to 100, not 1"),
        (("--best-of", "2", "--select", " "), "--select is empty"),
        (("--best-of", "2", "--select", "true", "--pattern", "race"), "give `--select` or `--pattern`"),
        (("--memory", "lots"), "--memory 'lots': give a size like 512M or 4G"),
        (("--memory", "1M"), "--memory: limit `memory_mb` must be a number from 16"),
        (("--cpu", "fast"), "--cpu 'fast': give a number of cores"),
        (("--model", " "), "--model is empty"),
    ],
)
def test_an_impossible_choice_is_refused(repo: Path, shoal: Shoal, words: tuple[str, ...], problem: str) -> None:
    done = shoal("run", "do it now", "--command", "true", *words)

    assert (done.code, problem in done.err) == (2, True), done.err
    assert not (repo / ".shoal").exists()


def test_work_of_unnamed_tasks_is_called_after_their_prompts(repo: Path, shoal: Shoal) -> None:
    tasks = ("--task", "Fix the login test, please", "--task", "做好", "--command", "sh -c 'echo > $SHOAL_SESSION'")

    done = shoal("run", *tasks, "--sandbox", "none", "--json")
    merged = shoal("merge", "--json")

    first, second = (step["worker_results"][0] for step in json.loads(done.out)["steps"])
    assert first["branch"].startswith("agent/fix-login-test/")
    assert first["session"].startswith("fix-login-test-")
    assert second["branch"].startswith("agent/task-2/")
    subjects = git(repo, "log", "--format=%s", "--merges", json.loads(merged.out)["branch"]).splitlines()
    assert subjects == ["Merge task-2 (command): 做好", "Merge fix-login-test (command): Fix the login test, please"]


def test_a_prompt_with_a_secret_names_no_branch(repo: Path, shoal: Shoal) -> None:
    text = "agents: {x: {adapter: command, command: [cat], env: {TOKEN: {from: SECRET_WORD}}}}\n"
    (repo / "shoal.yaml").write_text(f"{text}runtime: {{{CHEAP}}}\n")

    done = shoal("run", "--task", "login with hunter2hunter2 now", "--json", SECRET_WORD="hunter2hunter2")

    (step,) = json.loads(done.out)["steps"]
    assert step["worker_results"][0]["session"].startswith("task-1-")


def test_work_on_a_cell_is_called_after_the_step_and_the_cell(repo: Path, shoal: Shoal) -> None:
    steps = "steps: [{name: doc, agent: do, prompt: 'true', strategy: {matrix: {part: [core, CLI tools]}}}]"

    done = shoal("run", written(repo, steps), "--json")

    names = [worker["session"].rpartition("-")[0] for worker in json.loads(done.out)["steps"][0]["worker_results"]]
    assert names == ["doc-core", "doc-cli-tools"]


def test_the_only_ready_client_is_taken_and_named(repo: Path, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "NO_COLOR": "1", "ANTHROPIC_API_KEY": "k", "CODEX_API_KEY": "k"}
    path = program(tmp_path / "bin", "claude", "2.1.325 (Claude Code)")
    both = program(tmp_path / "both", "codex", "0.150.0") + ":" + path

    alone = warm.ran(("run", "fix the bug", "--dry-run"), cwd=repo, env={**environ, "PATH": path}, timeout=60)
    several = warm.ran(("run", "fix the bug", "--dry-run"), cwd=repo, env={**environ, "PATH": both}, timeout=60)

    assert alone.code == 0, alone.err
    assert "agent claude: the only client that is ready here" in alone.out
    assert (several.code, "claude and codex are ready here: add `--agent claude`" in several.err) == (2, True)


def test_work_on_a_node_is_called_after_its_prompt_too(repo: Path, shoal: Shoal) -> None:
    done = shoal("run", "--task", "Fix the login test", "--command", "sh -c 'echo > x'", "--on", "pipe:1", "--json")

    (worker,) = json.loads(done.out)["steps"][0]["worker_results"]
    assert (done.code, worker["branch"].rpartition("/")[0]) == (0, "agent/fix-login-test")
