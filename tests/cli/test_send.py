"""`shoal send`: a running agent gets messages once and in order, after its current turn."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.store.requests import MAX_SENT_CHARS, user_name
from tests.cli.conftest import SHOAL, Shoal, environment
from tests.cli.flows import written
from tests.cli.test_approve import started
from tests.conftest import git


def pipeline(repo: Path, script: Sequence[object], runtime: str = "sandbox: none, network: host") -> str:
    """Write a step of a scripted agent, and one of a command beside it."""
    robot = {"adapter": "scripted", "script": script, "env": {"KEY": {"from": "TOKEN"}}}
    steps = "steps: [{name: work, agent: robot, prompt: x}, {name: deaf, agent: w, prompt: y}]"
    deaf = f"while [ ! -e {repo}/go ]; do sleep 0.02; done"
    return written(repo, steps, runtime=runtime, more=f"  robot: {json.dumps(robot)}", w=deaf)


def turn(repo: Path) -> dict[str, str]:
    """Give the action that works until the file `go` is there."""
    return {"run": f"while [ ! -e {repo}/go ]; do sleep 0.02; done"}


def sessions(repo: Path) -> dict[str, str]:
    """Name the session of each step."""
    said = subprocess.run([SHOAL, "status", "--json"], cwd=repo, env=environment(), capture_output=True, check=True)
    return {step["step"]: step["worker_results"][0]["session"] for step in json.loads(said.stdout)["steps"]}


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "open-sesame-1234")


def test_messages_come_once_and_in_order_after_the_current_turn(repo: Path, shoal: Shoal) -> None:
    script = [{"say": "begun"}, turn(repo), {"receive": "a.txt"}, {"say": "more?"}, {"receive": "b.txt"}]
    with started(repo, SHOAL, "run", pipeline(repo, script), "--events") as run:
        run.until("Output", text="begun")
        session = sessions(repo)["work"]
        said = shoal("send", "work", "use open-sesame-1234\nand tea")
        piped = subprocess.run(
            [SHOAL, "send", session, "-", "--json"],
            cwd=repo,
            env=environment(),
            input="second",
            capture_output=True,
            text=True,
            check=True,
        )
        before = shoal("logs", session).out
        (repo / "go").touch()
        got = [run.until("AgentMessaged") for _ in range(2)]
        assert run.process.wait(timeout=60) == 0
    logs = shoal("logs", session).out
    late = shoal("send", session, "too late")
    branch = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent/work")

    assert (said.code, said.out) == (0, f"sent to {session}, which gets it after its current turn\n")
    assert json.loads(piped.stdout)["message"] == "second"
    assert "message of" not in before, "the turn goes on"
    assert [(event["by"], event["is_delivered"]) for event in got] == [(user_name(), True)] * 2
    assert git(repo, "show", f"{branch}:a.txt") == "use open-sesame-1234\nand tea"
    assert git(repo, "show", f"{branch}:b.txt") == "second"
    assert "open-sesame" not in logs + json.dumps(got)
    assert f"-- message of {user_name()} --\n  | use " in logs
    assert (late.code, late.err) == (2, f"shoal: {session} has ended (succeeded)\n")


def test_a_message_that_the_agent_never_gets_is_named(repo: Path, shoal: Shoal) -> None:
    script = [{"say": "begun"}, {"receive": "a.txt"}, turn(repo)]
    with started(repo, SHOAL, "run", pipeline(repo, script), "--events") as run:
        run.until("Output", text="begun")
        first = shoal("send", "work", "one", "--wait")
        second = subprocess.Popen(
            [SHOAL, "send", "work", "two", "--wait"], cwd=repo, env=environment(), stderr=subprocess.PIPE, text=True
        )
        with second:
            run.until("RequestTaken", message="two")
            (repo / "go").touch()
            _, complaint = second.communicate(timeout=60)
        missed = run.until("AgentMessaged", text="two")
        assert run.process.wait(timeout=60) == 0

    assert first.code == 0
    assert (second.returncode, complaint.endswith("ended before it got the message\n")) == (1, True)
    assert missed["is_delivered"] is False
    assert "which the agent did not get" in shoal("logs", "work").out


def test_who_cannot_hear_is_refused_before_anything_is_written(repo: Path, shoal: Shoal) -> None:
    with started(repo, SHOAL, "run", pipeline(repo, [{"say": "begun"}, turn(repo)]), "--events") as run:
        run.until("Output", text="begun")
        for _ in range(2):
            run.until("AgentStarted")
            if set(sessions(repo)) == {"work", "deaf"}:
                break
        deaf, script = shoal("send", "deaf", "hello"), shoal("send", "work", "hello")
        empty, long = shoal("send", "work", "  "), shoal("send", "work", "x" * (MAX_SENT_CHARS + 1))
        unknown = shoal("send", "nobody", "hello")
        left = [*(repo / ".shoal/requests").glob("*/*")]
        (repo / "go").touch()
        assert run.process.wait(timeout=60) == 0

    assert [said.code for said in (deaf, script, empty, long, unknown)] == [2] * 5
    assert "runs the adapter 'command', which takes no messages" in deaf.err
    assert "`scripted` with `receive`" in script.err
    assert "the message is empty" in empty.err
    assert "nobody" in unknown.err
    assert left == []
