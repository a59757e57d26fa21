"""`shoal pause`, `continue` and `set`: a run starts no agents for a while, or more or fewer of them at once."""

import json
import os
import signal
from pathlib import Path

import pytest

from shoal.store.requests import user_name
from tests.cli.conftest import SHOAL, Shoal
from tests.cli.flows import written
from tests.cli.test_approve import Event, Waiting, started
from tests.conftest import git
from tests.outside import wait_until

STEPS = ("s0", "s1", "s2")
THREE = (
    "steps: [{{name: {}, agent: w, prompt: x}}, {{name: {}, agent: w, prompt: x}}, {{name: {}, agent: w, prompt: x}}]"
)

WORKER = 'while [ ! -e "{repo}/go-$SHOAL_STEP" ]; do sleep 0.02; done; echo done > done.txt'


def runtime(at_once: int) -> str:
    return f"sandbox: none, network: host, max_concurrent_workers: {at_once}"


def pipeline(repo: Path, *, at_once: int) -> str:
    """Write three workers of which each waits for a file of its own."""
    return written(repo, THREE.format(*STEPS), runtime=runtime(at_once), w=WORKER.format(repo=repo))


def let_go(repo: Path, *steps: str) -> None:
    for step in steps:
        (repo / f"go-{step}").touch()


def rest(run: Waiting) -> list[Event]:
    """Give the events until the run ends."""
    events = []
    while (event := run.until_any("SessionStarted", "SessionEnded", "RunEnded"))["event"] != "RunEnded":
        events.append(event)
    return events


def test_a_paused_run_starts_no_agents_until_it_is_continued(repo: Path, shoal: Shoal) -> None:
    with started(repo, SHOAL, "run", pipeline(repo, at_once=1), "--events") as run:
        run.until("AgentStarted")
        said = shoal("pause")
        taken = run.until("RequestTaken")
        let_go(repo, *STEPS)
        run.until("SessionEnded")
        paused = json.loads(shoal("status", "--json").out)
        shown = shoal("runs").out
        continued = shoal("continue", "--json")
        after = run.until_any("SessionStarted", "RequestTaken")
        assert run.process.wait(timeout=60) == 0
    again = shoal("continue", taken["run"])

    assert said.out == f"paused {taken['run']}: no agent starts until `shoal continue {taken['run']}`\n"
    assert (taken["kind"], taken["by"], taken["refusal"]) == ("pause", user_name(), "")
    workers = [worker for step in paused["steps"] for worker in step["worker_results"]]
    assert (paused["status"], len(workers)) == ("paused", 1)
    assert "paused" in shown
    assert (json.loads(continued.out)["kind"], json.loads(continued.out)["taken"]) == ("continue", True)
    assert (after["event"], after["kind"]) == ("RequestTaken", "continue"), "nobody had started before"
    assert (again.code, again.err) == (2, f"shoal: {taken['run']} has ended (succeeded)\n")
    assert json.loads(shoal("status", "--json").out)["status"] == "succeeded"


def test_a_paused_run_can_be_stopped(repo: Path, shoal: Shoal) -> None:
    with started(repo, SHOAL, "run", pipeline(repo, at_once=1), "--events") as run:
        run.until("AgentStarted")
        not_paused, paused = shoal("continue"), shoal("pause")
        let_go(repo, *STEPS)
        run.until("SessionEnded")
        stopped = shoal("stop")
        assert run.process.wait(timeout=60) == 130

    assert (not_paused.code, not_paused.err.endswith("is not paused\n")) == (2, True)
    assert (paused.code, stopped.code) == (0, 0)
    assert json.loads(shoal("status", "--json").out)["status"] == "degraded"


def test_more_agents_run_at_once_as_soon_as_that_is_asked_for(repo: Path, shoal: Shoal) -> None:
    with started(repo, SHOAL, "run", pipeline(repo, at_once=1), "--events") as run:
        run.until("AgentStarted")
        said = shoal("set", "-j", "3")
        for _ in range(2):
            assert run.until_any("SessionStarted", "SessionEnded")["event"] == "SessionStarted"
        let_go(repo, *STEPS)
        assert run.process.wait(timeout=60) == 0
    none, bad = shoal("set", "-j", "2"), shoal("set", "-j", "0")

    assert said.out.endswith(" now runs at most 3 agents at once\n")
    assert (none.code, none.err.startswith("shoal: no run is alive")) == (2, True)
    assert (bad.code, "-j" in bad.err) == (2, True)


def test_fewer_agents_run_at_once_when_those_that_run_have_finished(repo: Path, shoal: Shoal) -> None:
    with started(repo, SHOAL, "run", pipeline(repo, at_once=2), "--events") as run:
        running = [run.until("SessionStarted")["step"] for _ in range(2)]
        assert shoal("set", "-j", "1").code == 0
        let_go(repo, running[0])
        first = run.until_any("SessionStarted", "SessionEnded")["event"]
        let_go(repo, *STEPS)
        later = [event["event"] for event in rest(run)]
        assert run.process.wait(timeout=60) == 0

    assert first == "SessionEnded"
    assert later == ["SessionEnded", "SessionStarted", "SessionEnded"]


TICK = "echo part > part.txt; while :; do echo tick >> {ticks}; sleep 0.02; done"


def ticking(repo: Path, sandbox: str, ticks: str) -> str:
    steps = "steps: [{name: s0, agent: w, prompt: x}, {name: s1, agent: w, prompt: x}]"
    return written(repo, steps, runtime=f"sandbox: {sandbox}", w=TICK.format(ticks=ticks))


def freeze(shoal: Shoal) -> bool:
    """Freeze the run, or see that a host without control groups says that it cannot be."""
    said = shoal("pause", "--freeze")
    if said.code == 2 and os.geteuid() != 0:
        assert "agents cannot be frozen here" in said.err
        shoal("stop")
        return False
    assert (said.code, "no agent runs until" in said.out) == (0, True), said.err
    return True


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_frozen_agents_stand_still_until_they_are_continued(repo: Path, shoal: Shoal) -> None:
    ticks = repo / "ticks"
    with started(repo, SHOAL, "run", ticking(repo, "none", str(ticks)), "--events") as run:
        for _ in range(2):
            run.until("AgentStarted")
        wait_until(ticks.exists)
        if not freeze(shoal):
            return
        before, shown = ticks.read_text(), json.loads(shoal("ps", "--json").out)
        still = ticks.read_text()
        continued = shoal("continue")
        wait_until(lambda: ticks.read_text() != still)
        shoal("stop")
        assert run.process.wait(timeout=60) == 130

    assert continued.code == 0
    assert still == before
    assert {row["state"] for row in shown if row["repository"] == str(repo)} == {"frozen"}


def test_a_frozen_session_and_its_run_can_be_stopped(repo: Path, shoal: Shoal) -> None:
    with started(repo, SHOAL, "run", ticking(repo, "bubblewrap", "/tmp/ticks"), "--events") as run:
        sessions = [run.until("AgentStarted")["session"] for _ in range(2)]
        if not freeze(shoal):
            return
        assert shoal("stop", sessions[0]).code == 0
        ended = run.until("SessionEnded")
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(timeout=60) == 130

    assert (ended["session"], ended["result"]["status"]) == (sessions[0], "cancelled")
    branches = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").split()
    assert [git(repo, "show", f"{branch}:part.txt") for branch in branches] == ["part"] * 2


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_a_kill_leaves_no_frozen_processes(repo: Path, shoal: Shoal, sandbox: str) -> None:
    with started(repo, SHOAL, "run", ticking(repo, sandbox, "/tmp/ticks-of-nobody"), "--events") as run:
        pids = [run.until("AgentStarted")["pid"] for _ in range(2)]
        if not freeze(shoal):
            return
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(timeout=60)
        wait_until(lambda: all(map(is_gone, pids)))
    assert shoal("clean").code == 0
    branches = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").split()

    assert [git(repo, "show", f"{branch}:part.txt") for branch in branches] == ["part"] * 2
