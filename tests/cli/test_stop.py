"""`shoal stop`: a run or one of its sessions is stopped from another terminal, and its work is kept."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from shoal.limits.cgroups import is_orphan
from shoal.store.requests import user_name
from tests.cli.conftest import SHOAL, Shoal, environment
from tests.cli.flows import CHEAP, written
from tests.cli.test_approve import Waiting, started
from tests.conftest import git

THREE = "steps: [{{name: s, agent: w, prompt: x, concurrency: 3, on_failure: {rule}, retry: {{max_attempts: 3}}}}]"
WORKER = """\
echo part > part-$SHOAL_WORKER_INDEX.txt; echo begun
[ $SHOAL_WORKER_INDEX = 1 ] && exec sleep 600
while [ ! -e "$GO" ]; do sleep 0.05; done
echo done > done-$SHOAL_WORKER_INDEX.txt
"""
STUBBORN = "trap '' TERM; echo part > part.txt; echo begun; while :; do sleep 0.05; done"


def sessions(running: Waiting, count: int) -> dict[int, str]:
    """Wait until *count* agents have said that they have begun, and name their sessions by index."""
    names: dict[str, int] = {}
    begun: set[str] = set()
    while len(begun) < count:
        event = running.until_any("SessionStarted", "Output")
        if event["event"] == "SessionStarted":
            names[event["session"]] = event["index"]
        elif "begun" in event["text"]:
            begun.add(event["session"])
    return {index: name for name, index in names.items()}


def report(shoal: Shoal) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(shoal("status", "--json").out)
    return document


@contextlib.contextmanager
def running(repo: Path, script: str, rule: str = "best_effort", runtime: str = CHEAP) -> Iterator[Waiting]:
    """Run three workers that do *script*."""
    file = written(repo, THREE.format(rule=rule), runtime=runtime, w=script)
    with started(repo, SHOAL, "run", file, "--events") as run:
        yield run


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_one_session_is_stopped_and_the_others_go_on(repo: Path, shoal: Shoal, sandbox: str) -> None:
    go = f"{repo}/go" if sandbox == "none" else "part-$SHOAL_WORKER_INDEX.txt"  # which a sandbox does not hide
    with running(repo, f"GO={go}\n{WORKER}", runtime=f"sandbox: {sandbox}") as run:
        session = sessions(run, 3)[1]
        said = shoal("stop", session)
        taken, ended = run.until("RequestTaken"), run.until("SessionEnded", session=session)
        again = shoal("stop", session)
        (repo / "go").touch()
        assert run.process.wait(timeout=60) == 1
    (step,) = report(shoal)["steps"]
    workers = step["worker_results"]

    assert (said.code, said.out, said.err) == (0, f"stopping {session} of {taken['run']}\n", "")
    assert (taken["kind"], taken["session"], taken["by"]) == ("stop", session, user_name())
    assert ended["result"]["error"] == f"stopped by {user_name()}"
    assert (again.code, again.err) == (2, f"shoal: {session} has ended (cancelled)\n")
    assert [worker["status"] for worker in workers] == ["succeeded", "cancelled", "succeeded"]
    assert (step["status"], workers[1]["attempts"]) == ("degraded", 1), "it is not tried again"
    assert git(repo, "show", f"{workers[1]['branch']}:part-1.txt") == "part"
    assert git(repo, "show", f"{workers[2]['branch']}:done-2.txt") == "done"


def test_a_stopped_session_fails_a_step_that_needs_all(repo: Path, shoal: Shoal) -> None:
    with running(repo, f"GO={repo}/go\n{WORKER}", rule="fail_fast") as run:
        session = sessions(run, 3)[1]
        assert shoal("stop", session).code == 0
        assert run.process.wait(timeout=60) == 1
    document = report(shoal)

    assert (document["status"], document["steps"][0]["status"]) == ("failed", "failed")


def test_a_run_is_stopped_as_by_ctrl_c(repo: Path, shoal: Shoal) -> None:
    with running(repo, "echo part > part.txt; echo begun; exec sleep 600") as run:
        sessions(run, 3)
        said = shoal("stop", "--json")
        assert run.process.wait(timeout=60) == 130
    document = report(shoal)
    (step,) = document["steps"]
    again, other = shoal("stop"), shoal("stop", document["run"])

    assert json.loads(said.out) == {
        "run": document["run"],
        "session": None,
        "kind": "stop",
        "now": False,
        "freeze": False,
        "at_once": None,
        "message": None,
        "by": user_name(),
        "taken": True,
    }
    assert (document["status"], step["status"]) == ("cancelled", "cancelled")
    assert [git(repo, "show", f"{worker['branch']}:part.txt") for worker in step["worker_results"]] == ["part"] * 3
    assert again.err == f"shoal: no run is alive; the latest, {document['run']}, has ended (cancelled)\n"
    assert (again.code, other.code, other.err) == (2, 2, f"shoal: {document['run']} has ended (cancelled)\n")
    assert list((repo / ".shoal/requests").iterdir()) == []


def test_a_run_is_ended_at_once_and_its_work_is_brought_in_later(repo: Path, shoal: Shoal) -> None:
    with running(repo, STUBBORN) as run:
        sessions(run, 3)
        said = shoal("stop", "--now")
        assert run.process.wait(timeout=60) == 130
    assert shoal("clean").code == 0
    branches = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").split()

    assert (said.code, said.out.endswith(" at once\n")) == (0, True)
    assert [git(repo, "show", f"{branch}:part.txt") for branch in branches] == ["part"] * 3


def test_what_is_not_alive_is_not_stopped(repo: Path, shoal: Shoal) -> None:
    none = shoal("stop")
    with running(repo, STUBBORN) as run:
        session = sessions(run, 3)[0]
        unknown, both = shoal("stop", "nothing-like-it"), shoal("stop", session, "--now")
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        dead, lost = shoal("stop"), shoal("stop", session)
    shoal("clean")

    assert (none.code, none.err) == (2, "shoal: no run is alive\n")
    assert (unknown.code, "nothing-like-it" in unknown.err) == (2, True)
    assert (both.code, "--now ends a whole run" in both.err) == (2, True)
    assert (dead.code, "no run is alive; the latest, " in dead.err) == (2, True)
    assert (lost.code, lost.err) == (2, f"shoal: {session} is not alive any more: its Shoal was killed\n")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_more_than_two_interrupts_change_nothing(repo: Path, shoal: Shoal, sign: signal.Signals) -> None:
    file = written(repo, THREE.format(rule="best_effort"), runtime="sandbox: bubblewrap", w=STUBBORN)
    words: list[str | Path] = [SHOAL, "run", file, "--events"]
    before = set(groups())
    with subprocess.Popen(words, cwd=repo, env=environment(), stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        sessions(Waiting(process), 3)
        process.send_signal(sign)
        read_until(process.stderr, "stopping")
        for _ in range(5):
            process.send_signal(sign)
        read_until(process.stderr, "killed")
        for _ in range(3):
            process.send_signal(sign)
        process.communicate(timeout=60)
    mounted = Path("/proc/self/mounts").read_text()
    cleaned = shoal("clean")

    assert (process.returncode, cleaned.code) == (130, 0)
    assert set(groups()) <= before
    assert str(repo) not in mounted
    assert git(repo, "for-each-ref", "refs/shoal") == ""
    branches = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").split()
    assert [git(repo, "show", f"{branch}:part.txt") for branch in branches] == ["part"] * 3


def groups() -> list[str]:
    """Name the control groups of this user's coordinators that are there now and whose coordinator is dead."""
    return [path.name for path in Path("/sys/fs/cgroup").rglob("shoal-*") if is_orphan(path.name)]


def read_until(lines: Iterable[str], word: str) -> None:
    assert any(word in line for line in lines)
