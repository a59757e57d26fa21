"""`shoal run` in a terminal: each agent's activity is shown, keys work, and the terminal is restored."""

import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.cli.pty_terminal import PtyTerminal, open_pty

# Prints Claude Code's format, step by step: the next line follows when the file of its name exists.
CLIENT = """\
import json, os, sys, time
def say(**event):
    print(json.dumps(event), flush=True)
def use(number):
    used = {"input_tokens": 1000 * number, "output_tokens": 200}
    block = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": "pytest -q"}}
    say(type="assistant", message={"id": f"m{number}", "model": "m", "usage": used, "content": [block]})
def result(number, failed):
    block = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "1 failed", "is_error": failed}
    say(type="user", message={"content": [block]})
what = sys.stdin.readline()
say(type="system", subtype="init", session_id="s", model="m")
use(1)
if "fails" in what:
    result(1, True)
if "waits" in what:
    say(type="system", subtype="api_retry", error_status=429, error="rate_limit", retry_delay_ms=40000)
time.sleep(600)
"""


CLAUDE = {"adapter": "claude", "command": [sys.executable, "-c", CLIENT], "network": "none"}


def write(repo: Path, agents: Mapping[str, object], steps: Sequence[Mapping[str, object]]) -> None:
    document = {"runtime": {"max_concurrent_workers": 8}, "agents": agents, "steps": steps}
    (repo / "p.yaml").write_text(json.dumps(document))


def scripted(*script: object) -> dict[str, object]:
    return {"adapter": "scripted", "script": list(script)}


def live_environment(**more: str) -> dict[str, str]:
    clean = environment(ANTHROPIC_API_KEY="dummy", **more)
    return {name: value for name, value in clean.items() if name != "CI"}


WORK = [{"say": "reading the parser"}, {"write": {"path": "a.txt", "content": "x"}}, {"say": "running the tests"}]


def test_each_agents_last_action_tokens_and_cost_are_seen_at_every_width(repo: Path) -> None:
    agents = {"plain": scripted(*WORK, {"sleep": 600}), "client": CLAUDE, "bad": scripted({"fail": "it broke"})}
    write(
        repo,
        agents,
        [
            {"name": "plain", "agent": "plain", "prompt": "fix the parser", "concurrency": 2},
            {"name": "fails", "agent": "client", "prompt": "fails"},
            {"name": "waits", "agent": "client", "prompt": "waits"},
            {"name": "bad", "agent": "bad", "prompt": "break"},
        ],
    )
    with open_pty(str(SHOAL), "run", "p.yaml", cwd=repo, env=live_environment()) as terminal:
        for columns in (80, 60, 160):
            terminal.resize(columns, 24)
            terminal.until(lambda: terminal.shown.count("running the tests") == 2)
            terminal.until(lambda: "Bash: pytest -q → failed" in terminal.shown)
            terminal.until(lambda: "rate limit" in terminal.shown and "again in " in terminal.shown)
            terminal.until(lambda: "it broke" in terminal.shown and "1.2k" in terminal.shown)
            assert_whole_words(terminal)
        terminal.resize(80, 7)
        terminal.until(lambda: "more: " in terminal.shown)

        terminal.process.send_signal(signal.SIGINT)
        terminal.resize(60, 60)
        assert terminal.end() == 130
        assert terminal.is_as_before
        assert "cancelled" in terminal.text
        assert max(map(len, terminal.lines)) <= 60
        assert "limits: " in terminal.shown
        assert_whole_words(terminal)


def assert_whole_words(terminal: PtyTerminal) -> None:
    """See that no line ends in the middle of a word."""
    known = ("tests", "parser", "failed", "running", "rate", "limit", "overlay", "bubblewrap", "change", "again")
    words = {word.strip(".,:;()·") for line in terminal.lines for word in line.split()}
    broken = {word for word in words for whole in known if len(word) > 3 and word != whole and whole.startswith(word)}
    assert broken == set(), terminal.shown


def test_a_gate_is_answered_in_the_terminal_after_a_look_at_the_diff(repo: Path) -> None:
    agents = {"one": scripted({"write": {"path": "new.txt", "content": "hello there\n"}})}
    gate = {"name": "gate", "gate": {"type": "approval", "message": "Ship it?"}, "needs": ["one"]}
    write(repo, agents, [{"name": "one", "agent": "one", "prompt": "go"}, gate])
    with open_pty(str(SHOAL), "run", "p.yaml", cwd=repo, env=live_environment()) as terminal:
        terminal.until(lambda: 'approve gate? "Ship it?" · y approve' in terminal.shown)
        terminal.press(b"d")
        terminal.until(lambda: "+hello there" in terminal.shown)
        terminal.press(b"\x1b")
        terminal.until(lambda: "+hello there" not in terminal.shown)
        terminal.press(b"y")

        assert terminal.end() == 0
        assert "gate approved by" in terminal.text
        assert terminal.is_as_before


def test_keys_show_a_log_stop_one_agent_and_end_the_run(repo: Path) -> None:
    script = [{"say": "first words"}, *WORK, {"sleep": 600}]
    step = {"name": "s", "agent": "w", "prompt": "go", "concurrency": 2, "on_failure": "best_effort"}
    write(repo, {"w": scripted(*script)}, [step])
    with open_pty(str(SHOAL), "run", "p.yaml", cwd=repo, env=live_environment()) as terminal:
        terminal.until(lambda: terminal.shown.count("running the tests") == 2)
        terminal.press(b"\x1b[Bl")
        terminal.until(lambda: "first words" in terminal.shown)
        terminal.press(b"\x1bd")
        terminal.until(lambda: "+x" in terminal.shown and "a.txt" in terminal.shown)
        terminal.press(b"\x1bx")
        terminal.until(lambda: "and keep its work? (y/n)" in terminal.shown)
        terminal.press(b"y")
        terminal.until(lambda: "1 failed · 1 running" in terminal.shown or "1 cancelled · 1 running" in terminal.shown)
        terminal.press(b"q")
        terminal.until(lambda: "stop the run" in terminal.shown)
        terminal.press(b"y")

        assert terminal.end() == 130
        assert terminal.is_as_before


def test_a_kill_leaves_a_terminal_with_its_cursor(repo: Path, shoal: Shoal) -> None:
    write(repo, {"w": scripted(*WORK, {"sleep": 600})}, [{"name": "s", "agent": "w", "prompt": "go"}])
    with open_pty(str(SHOAL), "run", "p.yaml", cwd=repo, env=live_environment()) as terminal:
        terminal.until(lambda: "running the tests" in terminal.shown)
        terminal.process.send_signal(signal.SIGKILL)
        terminal.end()

        assert not terminal.screen.cursor.hidden
        assert b"\x1b[?1049h" not in terminal.raw
    assert shoal("clean").code == 0  # unmounts what the killed run had mounted


@pytest.mark.parametrize(("words", "env"), [(("--no-live",), {}), ((), {"CI": "true"})])
def test_plain_lines_are_printed_where_that_is_asked_for(
    repo: Path, words: tuple[str, ...], env: dict[str, str]
) -> None:
    write(repo, {"w": scripted(*WORK)}, [{"name": "s", "agent": "w", "prompt": "go", "concurrency": 2}])
    with open_pty(str(SHOAL), "run", "p.yaml", *words, cwd=repo, env=live_environment() | env, columns=200) as terminal:
        assert terminal.end() == 0

        times = [float(found) for found in re.findall(r"^ *(\d+\.\d\d)s ", terminal.text, re.MULTILINE)]
        assert len(times) > 5
        assert times == sorted(times)
        assert b"\x1b[" not in terminal.raw


def test_lines_in_a_pipe_are_in_the_order_of_time(repo: Path, shoal: Shoal) -> None:
    write(repo, {"w": scripted(*WORK)}, [{"name": "s", "agent": "w", "prompt": "go", "concurrency": 5}])

    said = shoal("run", "p.yaml")

    times = [float(found) for found in re.findall(r"^ *(\d+\.\d\d)s ", said.out, re.MULTILINE)]
    assert len(times) > 15
    assert times == sorted(times)


def test_in_the_background_nothing_is_drawn_and_the_run_goes_on(repo: Path) -> None:
    wait = "while ! [ -e go ]; do sleep 0.1; done"
    agent = {"adapter": "command", "command": ["sh", "-c", f"echo at work; {wait}; echo x > done.txt"]}
    write(repo, {"w": agent}, [{"name": "s", "agent": "w", "prompt": "go"}])
    environ = {**live_environment(), "PATH": f"{SHOAL.parent}:/usr/local/bin:/usr/bin:/bin", "PS1": "$ "}
    with open_pty("bash", "--norc", "-i", cwd=repo, env=environ) as terminal:
        terminal.press(b"shoal run p.yaml --isolation worktree\n")
        terminal.until(lambda: "at work" in terminal.shown)
        terminal.press(b"\x1a")
        terminal.until(lambda: "Stopped" in terminal.shown)
        terminal.press(b"bg\n")
        terminal.until(lambda: "&" in terminal.shown)
        terminal.press(b"touch $(echo .shoal/workspaces/*/s/worker_0)/go; wait; echo over\n")
        terminal.until(lambda: "git merge agent/s/" in terminal.text and terminal.lines.count("over") == 1)
        assert "at work" not in terminal.shown
        terminal.press(b"exit\n")
        terminal.end()


def test_status_fits_80_columns_and_says_what_agents_do(repo: Path) -> None:
    name = "make-the-parser-faster-and-smaller"
    agents = {"done": scripted(*WORK), "busy": scripted(*WORK, {"sleep": 600})}
    steps = [{"name": f"{name}-{agent}", "agent": agent, "prompt": "fix 日本語"} for agent in agents]
    write(repo, agents, steps)
    with open_pty(str(SHOAL), "run", "p.yaml", cwd=repo, env=live_environment()) as terminal:
        terminal.until(lambda: "running the tests" in terminal.shown and "1 succeeded" in terminal.shown)

        with open_pty(str(SHOAL), "status", cwd=repo, env=live_environment(), rows=50) as second:
            assert second.end() == 0

        assert max(map(len, second.lines)) <= 80
        assert re.search(rf"^  {name}-done-\w{{6}} +succeeded  \d+\.\d s  1 file$", second.shown, re.MULTILINE)
        assert re.search(rf"^    branch: agent/{name}-done/\w{{6}}$", second.shown, re.MULTILINE)
        assert "doing: running; running the tests" in second.shown
        assert re.search(r"used: [\d,]+ MB memory at most, .* s CPU", second.shown)
