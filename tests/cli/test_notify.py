"""Notifications: hooks get facts and never shell text, and nothing about them delays or fails a run."""

import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHOAL, Shoal
from tests.cli.pty_terminal import open_pty
from tests.cli.test_live_run import live_environment, scripted, write

HOOK = """\
#!{python}
import json, os, sys
facts = {{name: value for name, value in os.environ.items() if name.startswith("SHOAL_")}}
with open({file!r}, "a") as out:
    print(json.dumps({{"argv": sys.argv[1:], "stdin": sys.stdin.read(), "facts": facts}}), file=out)
"""
HOSTILE = "ask $(touch owned) `touch owned`; <b>\x1b[2J\nnew line" + "x" * 2000


def make_program(path: Path, seen: Path) -> Path:
    """Write a program that notes how it was called."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(HOOK.format(python=sys.executable, file=str(seen)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls(seen: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in seen.read_text().splitlines()]


def write_gate(repo: Path, runtime: dict[str, object]) -> None:
    steps = [
        {"name": "one", "agent": "w", "prompt": "go"},
        {"name": "gate", "needs": ["one"], "gate": {"type": "approval", "message": HOSTILE, "timeout": 1}},
    ]
    document = {"runtime": runtime, "agents": {"w": scripted({"say": "hi"})}, "steps": steps}
    (repo / "p.yaml").write_text(json.dumps(document))


def test_a_hook_hears_of_a_gate_and_of_the_end(repo: Path, shoal: Shoal, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    hook = make_program(tmp_path / "bin" / "hook", seen)
    write_gate(repo, {"notify": {"command": [str(hook), "word"]}})

    said = shoal("run", "p.yaml", "--json")

    asked, ended = calls(seen)
    assert asked["argv"] == ["word"]
    assert (asked["facts"]["SHOAL_EVENT"], ended["facts"]["SHOAL_EVENT"]) == ("needs_person", "end")
    assert asked["facts"]["SHOAL_STEP"] == "gate"
    assert ended["facts"]["SHOAL_RUN"] == json.loads(said.out)["run"] == json.loads(ended["stdin"])["run"]
    assert ended["facts"]["SHOAL_STATUS"] == json.loads(said.out)["status"]
    message = asked["facts"]["SHOAL_MESSAGE"]
    assert "$(touch owned)" in message
    assert message.isprintable()
    assert len(message) <= 300
    assert not (repo / "owned").exists()


def test_the_end_alone_can_be_asked_for_and_the_command_line_overrides(
    repo: Path, shoal: Shoal, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    hook = make_program(tmp_path / "bin" / "hook", seen)
    write_gate(repo, {"notify": {"on": ["end"], "command": "false"}})

    said = shoal("run", "p.yaml", "--yes", "--notify-command", f"{hook} a b")
    silent = shoal("run", "p.yaml", "--yes", "--notify", "none")

    assert (said.code, silent.code) == (0, 0)
    (ended,) = calls(seen)
    assert (ended["argv"], ended["facts"]["SHOAL_EVENT"]) == (["a", "b"], "end")
    assert "succeeded" in ended["facts"]["SHOAL_MESSAGE"]


@pytest.mark.parametrize(
    ("command", "said"),
    [(["/no/such/program"], "no such program"), (["sh", "-c", "echo broken >&2; exit 3"], "it exited with 3: broken")],
)
def test_a_hook_that_fails_is_named_and_the_run_is_as_good(
    repo: Path, shoal: Shoal, command: list[str], said: str
) -> None:
    write_gate(repo, {"notify": {"on": ["end"], "command": command}})

    ran = shoal("run", "p.yaml", "--yes")

    assert ran.code == 0
    assert "shoal: notification: " in ran.err
    assert said in ran.err


@pytest.mark.deep
def test_a_hook_that_hangs_does_not_hold_the_run_for_long(
    repo: Path, shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gate(repo, {"notify": {"on": ["end"], "command": ["sleep", "600"]}})
    began = time.monotonic()

    ran = shoal("run", "p.yaml", "--yes")

    assert ran.code == 0
    assert time.monotonic() - began < 40
    assert "sleep took longer than 15 s" in ran.err


def test_the_desktop_gets_escaped_markup(repo: Path, shoal: Shoal, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    program = make_program(tmp_path / "bin" / "notify-send", seen)
    write_gate(repo, {"notify": "desktop"})

    ran = shoal("run", "p.yaml", PATH=f"{program.parent}:{os.environ['PATH']}")

    assert "notification" not in ran.err
    asked, ended = (call["argv"] for call in calls(seen))
    assert asked[:3] == ["--app-name=shoal", "--", "shoal: needs person"]
    assert "&lt;b&gt;" in asked[3]
    assert ended[2] == "shoal: end"


def test_a_desktop_without_notify_send_is_named_once(repo: Path, shoal: Shoal, tmp_path: Path) -> None:
    write_gate(repo, {"notify": ["desktop"]})
    (tmp_path / "git").symlink_to("/usr/bin/git")
    path = ":".join(folder for folder in os.environ["PATH"].split(":") if not Path(folder, "notify-send").exists())

    ran = shoal("run", "p.yaml", "--yes", PATH=path)

    assert ran.code == 0
    assert ran.err.count("notify-send is not installed") == 1


def test_the_bell_rings_in_the_terminal(repo: Path) -> None:
    write(repo, {"w": scripted({"say": "hi"})}, [{"name": "s", "agent": "w", "prompt": "go"}])
    with open_pty(str(SHOAL), "run", "p.yaml", "--notify", "bell", cwd=repo, env=live_environment()) as terminal:
        assert terminal.end() == 0
        assert b"\a" in terminal.raw


def test_a_resumed_run_notifies_as_its_plan_says(repo: Path, shoal: Shoal, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    hook = make_program(tmp_path / "bin" / "hook", seen)
    document = {
        "runtime": {"notify": {"on": ["end"], "command": [str(hook)]}},
        "agents": {"w": {"adapter": "command", "command": ["false"]}},
        "steps": [{"name": "s", "agent": "w", "prompt": "go"}],
    }
    (repo / "p.yaml").write_text(json.dumps(document))

    assert shoal("run", "p.yaml").code == 1
    assert shoal("retry").code == 1

    assert [call["facts"]["SHOAL_STATUS"] for call in calls(seen)] == ["failed", "failed"]


def test_a_conflict_is_told_once(repo: Path, shoal: Shoal, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    hook = make_program(tmp_path / "bin" / "hook", seen)
    agents = {name: scripted({"write": {"path": "same.txt", "content": name}}) for name in ("a", "b", "c")}
    write(repo, agents, [{"name": name, "agent": name, "prompt": "go"} for name in agents])

    shoal("run", "p.yaml", "--notify-command", str(hook))

    events = [call["facts"]["SHOAL_EVENT"] for call in calls(seen)]
    assert sorted(events) == ["conflict", "end"]
    assert "same.txt" in next(call for call in calls(seen) if call["facts"]["SHOAL_EVENT"] == "conflict")["stdin"]


def test_apprise_gets_its_addresses_by_their_variables(repo: Path, shoal: Shoal, tmp_path: Path) -> None:
    write_gate(repo, {"notify": {"on": ["end"], "apprise": ["MY_CHANNEL"]}})

    unset = shoal("run", "p.yaml", "--yes")
    refused = shoal("run", "p.yaml", "--yes", MY_CHANNEL="json://127.0.0.1:9/x")

    assert (unset.code, refused.code) == (0, 0)
    assert "apprise failed: $MY_CHANNEL is not set" in unset.err
    assert "apprise failed: it exited with 1" in refused.err
