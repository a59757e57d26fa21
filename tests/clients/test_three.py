"""Claude Code, Codex and goose, driven for real behind the full wall, with a scripted model on loopback."""

import json
import subprocess

import pytest

from tests.cli import warm
from tests.cli.conftest import SHOAL
from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, CODEX, EVERY, GOOSE, Real, interrupted, workers
from tests.conftest import git

each = pytest.mark.parametrize("real", EVERY, ids=[one.name for one in EVERY])

HINT = "You may spawn up to 3 concurrent sub-agents or workers for this step."
LOGIN = {"claude": "ANTHROPIC_API_KEY", "codex": "codex login", "goose": "goose configure"}
BROKEN = {"claude": "500", "codex": "high demand", "goose": "500"}
CUT = {"claude": "ECONNRESET", "codex": "disconnected", "goose": "decod"}


@each
def test_five_work_at_once_on_five_branches_and_are_told_who_they_are(scene: MakeScene, real: Real) -> None:
    here = scene(real)
    prompts = [f"write [[s:both file=by-{n}.txt content=mine-{n}%0A in={100 + n} out={20 + n}]]" for n in range(5)]
    here.write([{"name": f"w{n}", "prompt": text, "max_concurrent_agents": 3} for n, text in enumerate(prompts)])

    report = here.run()

    assert report["status"] == "succeeded", report
    assert report["wall"].startswith("bubblewrap")
    for n, worker in enumerate(workers(report).values()):
        files = git(here.repo, "diff", "--name-only", "main", worker["branch"]).splitlines()
        assert files == [f"by-{n}.txt", "shell.txt"]
        assert git(here.repo, "show", f"{worker['branch']}:by-{n}.txt") == f"mine-{n}"
        assert worker["output"] == "I will write it.\nI will run it.\nDone.\n"
        assert worker["usage"]["input_tokens"] == 3 * (100 + n)
        assert worker["usage"]["output_tokens"] == 3 * (20 + n)
        assert worker["usage"]["cost_usd"] > 0
    spent = report["usage"]
    assert (spent["input_tokens"], spent["output_tokens"]) == (here.model.usage.input, here.model.usage.output)
    assert spent["cost_usd"] > 0
    assert all("You are the tester of wells." in one and HINT in one for one in here.model.systems)
    assert {request.model for request in here.model.requests} == {real.model}
    assert here.left() == []


@pytest.mark.deep
@each
def test_every_way_to_fail_is_told_whatever_the_exit_code(scene: MakeScene, real: Real) -> None:
    here = scene(real)
    prompts = {
        "refused": "[[s:err401]]",
        "limited": "[[s:err429once retry=1 in=10 out=2]]",
        "broken": "[[s:err500]]",
        "cut": "[[s:cutstream]]",
        "hung": "[[s:hang]]",
    }
    patience = {name: 3 if name == "hung" else 60 for name in prompts}
    here.write([{"name": name, "prompt": text, "stall_timeout": patience[name]} for name, text in prompts.items()])

    found = workers(here.run())

    statuses = {name: worker["status"] for name, worker in found.items()}
    assert statuses == {**dict.fromkeys(prompts, "failed"), "limited": "no_changes"}, found
    assert "refused its login" in found["refused"]["error"]
    assert LOGIN[real.name] in found["refused"]["error"]
    assert BROKEN[real.name] in found["broken"]["error"]
    assert CUT[real.name] in found["cut"]["error"]
    assert found["hung"]["error"] == "it hung: no output and no activity for 3 s"
    assert found["limited"]["output"] == "Recovered.\n"
    assert found["limited"]["usage"]["input_tokens"] == 10
    assert here.left() == []


@pytest.mark.deep
@each
def test_a_model_that_speaks_slowly_is_not_taken_for_one_that_hangs(scene: MakeScene, real: Real) -> None:
    here = scene(real)
    here.write([{"name": "w", "prompt": "[[s:slow ms=500]]", "stall_timeout": 9}])

    worker = workers(here.run())["w"]

    assert worker["status"] == "no_changes", worker
    assert worker["output"].split() == ["slow"] * 20
    assert worker["duration_seconds"] > 9
    assert "codex_otel" not in here.logs()  # what Codex hums is no word of its own


DENIED = {
    "claude": {"deny": ["Bash(touch *)", "Write(secret*)"]},
    "codex": {"deny": ["Bash(touch *)"]},
    "goose": {"deny": ["Bash"]},
}


@each
def test_a_tool_that_is_denied_is_not_used(scene: MakeScene, real: Real) -> None:
    here = scene(real)
    here.write([{"name": "w", "prompt": "[[s:shell cmd=touch%20forbidden]]"}], permissions=DENIED[real.name])

    report = here.run()

    worker = workers(report)["w"]
    assert (worker["status"], worker["branch"]) == ("no_changes", None), worker
    assert any(word in here.model.requests[-1].results[0].lower() for word in ("denied", "rejected", "declined"))
    if real is not CODEX:  # which tells nobody but its model
        assert f"the client {real.name}" in here.logs()


@pytest.mark.parametrize(
    ("real", "allowed"), [(CLAUDE, ["Read", "Write(src/*)"]), (GOOSE, ["Write"])], ids=["claude", "goose"]
)
def test_only_what_is_allowed_is_used(scene: MakeScene, real: Real, allowed: list[str]) -> None:
    here = scene(real)
    here.write([{"name": "w", "prompt": "[[s:both file=src/a.txt]]"}], permissions={"allowed_tools": allowed})

    worker = workers(here.run())["w"]

    assert worker["status"] == "succeeded", worker
    assert git(here.repo, "diff", "--name-only", "main", worker["branch"]) == "src/a.txt"


@each
def test_a_run_that_is_stopped_leaves_nobody_and_keeps_the_work(scene: MakeScene, real: Real) -> None:
    here = scene(real)

    worker = interrupted(here)

    assert worker["status"] == "cancelled", worker
    assert git(here.repo, "show", f"{worker['branch']}:half.txt") == "half"
    assert here.left() == []


@pytest.mark.deep
@each
def test_a_client_whose_time_is_over_is_ended_with_its_tools(scene: MakeScene, real: Real) -> None:
    here = scene(real)
    here.write([{"name": "w", "prompt": "[[s:shell cmd=tail%20-f%20%2Fdev%2Fnull]]"}])

    worker = workers(here.run("--timeout", "4"))["w"]

    assert (worker["status"], worker["limit"]) == ("timed_out", "time"), worker
    assert here.left() == []


def test_claude_gets_a_message_from_another_terminal_after_its_turn(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    wait = "while%20%5B%20!%20-e%20go%20%5D%3B%20do%20sleep%200.1%3B%20done"
    here.write([{"name": "w", "prompt": f"[[s:shell cmd={wait}]]"}])
    command = [
        str(SHOAL),
        "run",
        "shoal.yaml",
        "--json",
        "--sandbox",
        "none",
        "--network",
        "host",
        "--isolation",
        "worktree",
    ]
    with subprocess.Popen(command, cwd=here.repo, env=here.environ(), stdout=subprocess.PIPE, text=True) as running:
        here.model.wait(1, timeout=60)
        said = "Also, [[s:write file=tea.txt content=tea%0A]] please."
        sent = subprocess.run([SHOAL, "send", "w", said], cwd=here.repo, env=here.environ(), check=True, timeout=60)
        (workspace,) = (here.repo / ".shoal/workspaces").glob("*/w/worker_0")
        assert len(here.model.requests) == 1, "the turn goes on"
        (workspace / "go").touch()
        out, _ = running.communicate(timeout=90)
    worker = workers(json.loads(out))["w"]
    talks = [request.conversation.messages for request in here.model.requests]
    asked = [any("file=tea.txt" in message.text for message in messages) for messages in talks]

    assert sent.returncode == 0
    assert worker["status"] == "succeeded", worker
    assert git(here.repo, "show", f"{worker['branch']}:tea.txt") == "tea"
    assert asked == [False, False, True, True], "the message came after the turn, in the same conversation"
    assert "-- message of " in warm.ran(("logs",), cwd=here.repo, env=here.environ(), timeout=60).out
    assert worker["usage"]["input_tokens"] == here.model.usage.input, "both turns count"
    assert here.left() == []
