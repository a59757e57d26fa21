"""`shoal attach`: a run is watched from another terminal, and continues when that leaves."""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.cli.flows import written
from tests.cli.pty_terminal import open_pty
from tests.cli.test_approve import started

STEPS = "steps: [{{name: work, agent: w, prompt: x}}, {{name: more, agent: w, prompt: y, needs: [work]}}]"


def pipeline(repo: Path, end: str = "exit 0") -> str:
    """Write two steps that wait for the file `go`."""
    return written(repo, STEPS.format(), w=f"while [ ! -e {repo}/go ]; do sleep 0.02; done; {end}")


def watching(repo: Path, *words: str) -> "subprocess.Popen[str]":
    """Attach without a terminal."""
    return subprocess.Popen(
        [SHOAL, "attach", *words],
        cwd=repo,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_shows_the_run_to_its_end_and_exits_as_it_does(repo: Path, shoal: Shoal) -> None:
    with started(repo, SHOAL, "run", pipeline(repo, "exit 7"), "--events") as run:
        run.until("AgentStarted")
        with watching(repo) as other, watching(repo, "--events") as third:
            assert other.stdout is not None
            assert third.stdout is not None
            lines = [other.stdout.readline() for _ in range(2)]
            (repo / "go").touch()
            out = other.stdout.read()  # `communicate` would lose what `readline` has read ahead
            other.wait(60)
            events = [json.loads(line)["event"] for line in third.stdout]
        assert run.process.wait(timeout=60) == 1
    shown = "".join(lines) + out
    later = shoal("attach")

    assert (other.returncode, third.returncode, later.code) == (1, 1, 1)
    assert "started  work-" in shown
    assert "ended    work-" in shown
    assert " failed: 0 of " in shown
    assert (events[0], events.count("SessionEnded"), events[-1]) == ("RunStarted", 1, "RunEnded")
    assert "ended    work-" in later.out


def test_leaving_it_leaves_the_run(repo: Path, shoal: Shoal) -> None:
    with started(repo, SHOAL, "run", pipeline(repo), "--events") as run:
        run.until("AgentStarted")
        with watching(repo) as other:
            assert other.stdout is not None
            other.stdout.readline()
            other.send_signal(signal.SIGINT)
            _, said = other.communicate(timeout=60)
        for_a_person = {name: value for name, value in environment().items() if name != "CI"}
        with open_pty(str(SHOAL), "attach", cwd=repo, env=for_a_person) as terminal:
            terminal.until(lambda: "work-" in terminal.shown)
            terminal.press(b"q")
            assert terminal.end() == 0
        (repo / "go").touch()
        assert run.process.wait(timeout=60) == 0

    assert (other.returncode, said.startswith("detached; ")) == (130, True)
    assert "Traceback" not in said
    assert "detached; " in terminal.text


def test_a_killed_run_is_said_to_be_killed(repo: Path, shoal: Shoal) -> None:
    with started(repo, SHOAL, "run", pipeline(repo), "--events") as run:
        run.until("AgentStarted")
        with watching(repo, "--json") as other:
            assert other.stderr is not None
            other.stderr.readline()
            os.kill(run.process.pid, signal.SIGKILL)
            out, said = other.communicate(timeout=60)
    shoal("clean")

    assert other.returncode == 1
    assert json.loads(out)["status"] == "interrupted"
    assert "was killed; `" in said
