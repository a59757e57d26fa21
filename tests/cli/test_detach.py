"""Background runs, and waiting for their end."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.proc.process import is_ended
from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git

SECONDS = 60


@pytest.fixture
def door(tmp_path: Path) -> Path:
    """A FIFO that an agent without a sandbox waits at."""
    os.mkfifo(tmp_path / "door")
    return tmp_path / "door"


def waiting(door: Path) -> list[str]:
    """The words of a run whose agent waits at *door*, then writes a file."""
    script = f"echo part > part.txt; read answer < {door}; echo $answer > done.txt"
    return ["--sandbox", "none", "--task", "x", "--command", f"sh -c '{script}'"]


def let_through(door: Path) -> None:
    door.write_text("yes\n")


def started(shoal: Shoal, *words: str) -> dict[str, str]:
    said = shoal("run", "--detach", "--json", *words)
    assert said.code == 0, said.err
    known: dict[str, str] = json.loads(said.out)
    return known


@contextlib.contextmanager
def at_a_terminal(repo: Path, *argv: str | Path) -> Iterator[int]:
    """Run *argv* as the leader of a terminal's session, and give our end of the terminal, which the test closes."""
    ours, theirs = os.openpty()
    words = ["setsid", "--ctty", *argv]
    with subprocess.Popen(words, cwd=repo, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs) as leader:
        os.close(theirs)
        yield ours
        leader.wait(SECONDS)


def read_until(terminal: int, word: bytes) -> bytes:
    seen = b""
    while word not in seen:
        seen += os.read(terminal, 4096)
    return seen


def test_a_detached_run_goes_on_without_the_command_that_started_it(repo: Path, shoal: Shoal, door: Path) -> None:
    said = shoal("run", "--detach", *waiting(door))
    run = said.out.split()[1]
    watched = os.pidfd_open(int(said.out.partition(", pid ")[2].partition(";")[0]))
    late, status = shoal("wait", "--timeout", "0.1"), json.loads(shoal("status", "--json").out)
    let_through(door)
    over = shoal("wait", run)

    assert said.code == 0
    assert f"run {run} started in the background, pid " in said.out
    assert f"  shoal wait {run}\n" in said.out
    assert (late.code, f"{run} is still running after 0.1 s" in late.err) == (124, True)
    assert (status["run"], status["status"]) == (run, "running")
    assert (over.code, over.out.startswith(f"{run} succeeded: 1 of 1 agent succeeded in ")) == (0, True)
    branch = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent")
    assert git(repo, "show", f"{branch}:done.txt") == "yes"
    assert is_ended(watched, SECONDS)
    os.close(watched)
    printed = (repo / ".shoal/runs" / f"{run}.out").read_text()
    assert f"run {run} on " in printed
    assert f"git merge {branch}" in printed, "the report is there too"


def test_a_running_run_names_its_sessions_with_their_index(shoal: Shoal, door: Path) -> None:
    started(shoal, *waiting(door))
    with door.open("w") as gate:  # opens when the agent reads
        (worker,) = json.loads(shoal("status", "--json").out)["steps"][0]["worker_results"]
        gate.write("yes\n")

    assert shoal("wait").code == 0
    assert (worker["index"], worker["status"]) == (0, "running")
    assert worker["session"].startswith("x-")


def test_a_detached_run_survives_its_terminal(repo: Path, shoal: Shoal, door: Path) -> None:
    line = f"{SHOAL} run --detach --sandbox none --task x --command 'head -n 1 {door}'; read never"
    with at_a_terminal(repo, "sh", "-c", line) as terminal:
        read_until(terminal, b"shoal wait ")
        os.close(terminal)
    let_through(door)

    assert shoal("wait").code == 0


def test_a_closed_terminal_lets_the_run_go_where_that_was_asked(repo: Path, shoal: Shoal, door: Path) -> None:
    ours, theirs = os.openpty()
    words = ["setsid", "--ctty", str(SHOAL), "run", "--detach-on-hangup", *waiting(door)]
    with subprocess.Popen(words, cwd=repo, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        read_until(ours, b"running ")
        os.close(ours)
        let_through(door)
        code = running.wait(SECONDS)

    assert (code, shoal("wait").code) == (0, 0)
    (file,) = (repo / ".shoal/runs").glob("*.out")
    assert "succeeded: 1 of 1 agent" in file.read_text(), "what the terminal would have shown"


def test_a_closed_terminal_stops_the_run_where_nothing_was_asked(repo: Path, shoal: Shoal, door: Path) -> None:
    with at_a_terminal(repo, SHOAL, "run", *waiting(door)) as terminal:
        read_until(terminal, b"running ")
        os.close(terminal)

    assert shoal("wait").code == 130


@pytest.mark.parametrize(
    "words",
    [
        ("--task", "x"),
        ("--task", "x", "--command", "true", "--base", "nowhere"),
        ("--task", "x", "--command", "no-such-program"),
        ("--task", "x", "--command", "true", "-j", "0"),
        ("missing.yaml",),
    ],
)
def test_what_a_run_refuses_is_refused_before_it_is_detached(repo: Path, shoal: Shoal, words: tuple[str, ...]) -> None:
    plain, detached = shoal("run", *words), shoal("run", *words, "--detach")

    assert plain.code in (2, 5)
    assert detached == plain
    assert not (repo / ".shoal").exists()


@pytest.mark.parametrize("other", ["--events", "--dry-run"])
def test_what_prints_here_is_not_detached(shoal: Shoal, other: str) -> None:
    said = shoal("run", "--detach", other, "--task", "x", "--command", "true")

    assert (said.code, f"both --detach and {other}" in said.err) == (2, True)


def test_the_option_between_the_two_processes_is_not_for_people(shoal: Shoal) -> None:
    said = shoal("run", "--detach", "--report-start", "77", "--task", "x", "--command", "true")

    assert (said.code, "leave it out" in said.err) == (2, True)
    assert "--report-start" not in shoal("run", "--help").out


def test_tasks_from_stdin_reach_a_detached_run(repo: Path, shoal: Shoal) -> None:
    words = [str(SHOAL), "run", "--detach", "--tasks", "-", "--command", "sh -s"]
    typed = "echo one > one.txt\necho two > two.txt\n"
    subprocess.run(words, cwd=repo, env=environment(), input=typed, text=True, check=True, capture_output=True)

    assert shoal("wait").code == 0
    branches = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").split()
    assert {git(repo, "ls-tree", "--name-only", one, "one.txt", "two.txt") for one in branches} == {
        "one.txt",
        "two.txt",
    }


HELD = """\
runtime: {sandbox: none, max_concurrent_workers: 1, merge: {strategy: auto, verify: "test ! -e a.txt || test ! -e b.txt"}}
steps: [{name: a, command: "echo x > a.txt"}, {name: b, command: "echo x > b.txt"}]
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--task", "x", "--command", "true"), 0),
        (("--task", "x", "--command", "false"), 1),
        (("held.yaml",), 4),
        (("--task", "x", "--command", "sleep 60", "--deadline", "0.5"), 124),
    ],
)
def test_wait_ends_with_the_code_of_the_run(repo: Path, shoal: Shoal, words: tuple[str, ...], code: int) -> None:
    (repo / "held.yaml").write_text(HELD)
    ran = shoal("run", *words)
    before = shoal("wait", "--json")
    detached = shoal("run", *words, "--detach")

    assert (ran.code, before.code, detached.code) == (code, code, 0), ran.err
    assert shoal("wait").code == code
    assert json.loads(before.out) == json.loads(shoal("status", json.loads(before.out)["run"], "--json").out)


def test_wait_ends_with_the_code_of_a_run_that_was_stopped(repo: Path, shoal: Shoal, door: Path) -> None:
    known = started(shoal, *waiting(door))
    os.kill(int(known["pid"]), signal.SIGTERM)

    assert shoal("wait", known["run"]).code == 130
    assert "stopping the agents and keeping their work" in Path(known["output"]).read_text()


def test_wait_says_that_a_run_was_killed(shoal: Shoal, door: Path) -> None:
    known = started(shoal, *waiting(door))
    watched = os.pidfd_open(int(known["pid"]))
    os.kill(int(known["pid"]), signal.SIGKILL)
    assert is_ended(watched, SECONDS)
    os.close(watched)
    said = shoal("wait")

    assert (said.code, f"{known['run']} was killed; `shoal clean` recovers" in said.err) == (1, True)
    assert shoal("clean").code == 0
    assert shoal("wait", known["run"]).code == 1, "also when its work was brought in"


def test_wait_before_any_run_and_for_an_unknown_one_is_refused(shoal: Shoal) -> None:
    nothing, typo = shoal("wait"), shoal("wait", "--timeout", "soon")

    assert (nothing.code, "there is no run yet" in nothing.err) == (2, True)
    assert (typo.code, "--timeout" in typo.err) == (2, True)
