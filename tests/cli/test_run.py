"""`shoal run`, from arguments to exit code."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from shoal.cli.main import exit_code
from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git

RUN_FIELDS = {
    "run",
    "status",
    "base",
    "duration_seconds",
    "usage",
    "steps",
    "merge",
    "queues",
    "error",
    "overlaps",
    "wall",
    "limits",
    "workspace",
    "notes",
}
STEP_FIELDS = {
    *(
        "step",
        "on_failure",
        "status",
        "total_workers",
        "success_count",
        "fail_count",
        "cancelled_count",
        "skipped_count",
    ),
    *("worker_workspaces", "worker_results", "error", "selected", "ranking", "rounds", "artifacts", "notes"),
}
WORKER_FIELDS = {
    *("item", "base", "contracts"),
    *("index", "session", "prompt", "status", "exit_code", "output", "branch", "commit", "files_changed", "attempts"),
    *(
        "duration_seconds",
        "usage",
        "resources",
        "agent",
        "node",
        "parent",
        "client_session",
        "artifacts",
        "limit",
        "error",
        "unkept",
        "instructions",
        "secrets",
        "notes",
        "unconverted",
        "executable_config",
        "set_back",
        "ignored",
        "kept_refs",
        "raw",
    ),
}


def test_json_is_one_document_of_the_contract(shoal: Shoal, repo: Path) -> None:
    said = shoal("run", "--json", "--task", "a", "--task", "b", "--command", "sh -c 'cat > prompt.txt; echo done'")
    report = json.loads(said.out)
    first, second = report["steps"]
    worker = first["worker_results"][0]

    assert said.code == 0
    assert report.keys() == RUN_FIELDS
    assert first.keys() == STEP_FIELDS
    assert worker.keys() == WORKER_FIELDS
    assert (report["status"], report["merge"]) == ("succeeded", None)
    assert report["usage"] == {"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
    assert report["base"] == git(repo, "rev-parse", "HEAD")
    assert (first["step"], second["step"]) == ("task-1", "task-2")
    assert (worker["output"], worker["exit_code"], worker["files_changed"]) == ("done\n", 0, 1)
    assert git(repo, "show", f"{worker['branch']}:prompt.txt") == "a"
    assert "ended    task-1" in said.err


def test_a_person_is_told_what_came_of_it(shoal: Shoal, repo: Path, pipelines: Path) -> None:
    said = shoal("run", "both")

    assert said.code == 0
    assert [line.split()[1] for line in said.out.splitlines()[1:7]].count("started") == 2
    assert "succeeded: 2 of 2 agents" in said.out
    assert re.search(r"^  x same\.txt: (one|two)-\w+, (one|two)-\w+$", said.out, re.MULTILINE)
    assert "sandbox: bubblewrap" in said.out
    assert "limits: " in said.out
    assert "shoal merge both-" in said.out
    assert "I am one" not in said.out, "what agents say is in their logs"


def test_events_are_one_json_object_per_line(shoal: Shoal) -> None:
    said = shoal("run", "--events", "--task", "x", "--command", "echo hi")
    events = [json.loads(line) for line in said.out.splitlines()]
    kinds = [event["event"] for event in events]

    assert (kinds[0], kinds[-1]) == ("RunStarted", "RunEnded")
    assert {"StepStarted", "SessionStarted", "AgentStarted", "Output", "AgentEnded", "SessionEnded"} <= set(kinds)
    assert all({"seq", "at"} <= event.keys() for event in events)


def test_a_failed_agent_is_exit_1_and_its_work_is_kept(shoal: Shoal, repo: Path, pipelines: Path) -> None:
    said = shoal("run", "broken")

    assert said.code == 1
    assert ": it broke" in said.out
    assert "logs bad-" in said.out
    assert git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").startswith("agent/bad/")


def test_what_the_agents_do_not_see_is_told_before_they_start(shoal: Shoal, repo: Path) -> None:
    (repo / "README.md").write_text("not committed\n")

    lines = shoal("run", "--task", "x", "--command", "true").out.splitlines()

    assert "1 uncommitted change" in lines[1]
    assert "started" in lines[2]
    assert max(map(len, lines[:2])) <= 80


def test_one_agent_is_counted_as_one(shoal: Shoal) -> None:
    assert "failed: 0 of 1 agent succeeded" in shoal("run", "--task", "x", "--command", "false").out


def test_a_timeout_is_told_and_kept(shoal: Shoal) -> None:
    said = shoal("run", "--json", "--timeout", "0.3", "--task", "x", "--command", "sh -c 'echo a > a; sleep 60'")
    worker = json.loads(said.out)["steps"][0]["worker_results"][0]

    assert said.code == 1
    assert worker["status"] == "timed_out"
    assert worker["branch"] is not None


def test_tricks_of_an_agent_do_not_reach_the_terminal(shoal: Shoal) -> None:
    script = (
        r"""sh -c 'printf "\033]52;c;eA==\007 \342\200\256\n"; printf "\033[2J oh\n" >&2;"""
        r""" touch "$(printf "\033[31mred")"; exit 3'"""
    )
    for face in ((), ("--json",), ("--events",)):
        said = shoal("run", *face, "--task", "x\x1b[1m", "--command", script)

        assert said.code == 1
        assert "oh" in said.out
        assert not [sign for sign in said.out + said.err if not sign.isprintable() and sign != "\n"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "nothing to run"),
        (("--task", "x"), "no agent"),
        (("--task", "x", "--agent", "nobody"), "nobody"),
        (("--task", "x", "--agent", "a", "--command", "/bin/true"), "give only one of"),
        (("both", "--agent", "a"), "--agent works only with `--task`"),
        (("both", "--task", "x"), "give a pipeline or tasks, not both"),
        (("both", "--timeout", "soon"), "--timeout: 'soon' is not a duration"),
        (("both", "--deadline", "0"), "--deadline: 0.0 is not a duration"),
        (("--task", " ", "--command", "/bin/true"), "empty"),
        (("--command", "/bin/true"), "--task"),
        (("--task", "x", "--command", "'"), "quotes"),
        (("--task", "x", "--command", "/bin/true", "-j", "0"), "-j must be at least 1"),
        (("--task", "x", "--command", "/bin/true", "-j", "many"), "-j"),
        (("--task", "x", "--command", "/bin/true", "--timeout", "soon"), "soon"),
        (("--task", "x", "--command", "/bin/true", "--timeout", "nan"), "nan"),
        (("--task", "x", "--command", "/bin/true", "--sandbox", "paper"), "--sandbox"),
        (("--task", "x", "--command", "/bin/true", "--network", "wifi"), "--network"),
        (("--task", "x", "--command", "/bin/true", "--isolation", "vm"), "--isolation"),
        (("--task", "x", "--command", "/bin/true", "--base", "nowhere"), "nowhere"),
        (("--task", "x", "--command", "/bin/true", "--json", "--events"), "choose one"),
        (("nothing.yaml",), "nothing.yaml"),
        (("a-pipeline",), "a-pipeline"),
    ],
)
def test_bad_words_are_exit_2_and_change_nothing(
    repo: Path,
    words: tuple[str, ...],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(repo)

    code = exit_code(["run", *words])
    out, err = capsys.readouterr()

    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert not (repo / ".shoal").exists()


def test_no_repository_is_exit_2(shoal: Shoal, tmp_path: Path) -> None:
    for words in (
        ("run", "--task", "x", "--command", "/bin/true"),
        ("status",),
        ("logs",),
        ("diff",),
        ("open",),
        ("clean",),
    ):
        said = shoal(*words, cwd=tmp_path)

        assert (said.code, said.out) == (2, ""), words
        assert said.err.startswith("shoal: ")
    assert list(tmp_path.glob(".shoal")) == []


def test_a_wall_that_cannot_be_had_is_exit_5(shoal: Shoal, tmp_path: Path) -> None:
    """Without `bwrap` on PATH there is no bubblewrap sandbox, and no other replaces it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to("/usr/bin/git")

    said = shoal("run", "--task", "x", "--command", "/bin/true", PATH=str(tmp_path / "bin"))

    assert said.code == 5
    assert "bubblewrap" in said.err


def test_a_reader_that_goes_away_does_not_stop_the_run(repo: Path, pipelines: Path) -> None:
    script = f"{SHOAL} run both | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=repo, env=environment(), capture_output=True, text=True, timeout=60
    )

    assert done.stdout.splitlines()[-1] == "0"
    assert "overlap" in done.stderr, "a warning is no part of what is piped"
    assert "Error" not in done.stderr
    assert len(git(repo, "for-each-ref", "refs/heads/agent").splitlines()) == 2


def test_the_document_comes_though_nobody_reads_the_progress(repo: Path, pipelines: Path) -> None:
    script = f"{{ {SHOAL} run both --json 2>&1 >&3 | true; }} 3> report.json; cat report.json"
    done = subprocess.run(["bash", "-c", script], cwd=repo, env=environment(), capture_output=True, timeout=60)

    assert json.loads(done.stdout)["status"] == "succeeded"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_keeps_the_work_and_is_exit_130(repo: Path, sign: signal.Signals) -> None:
    words = ["run", "--events", "--task", "x", "--command", "sh -c 'echo half > half.txt; echo ready; sleep 60'"]
    with subprocess.Popen([SHOAL, *words], cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if '"ready"' in line)
        os.kill(running.pid, sign)
        running.communicate(timeout=30)

    assert running.returncode == 130
    branch = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent")
    assert git(repo, "show", f"{branch}:half.txt") == "half"
