"""Checkpoints: the files of a running agent are saved, and a run whose machine crashed continues from them."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from shoal.workspaces.mount import list_mounts, unmount
from tests.cli.conftest import SHOAL, Shoal
from tests.cli.flows import CHEAP, written
from tests.cli.test_approve import Waiting, started
from tests.conftest import git

ONE = "steps: [{name: s, agent: w, prompt: x}]"
IN_TWO_PARTS = """\
echo one > one.txt
while [ ! -e "$GO/1" ]; do sleep 0.05; done
echo two > two.txt
while [ ! -e "$GO/2" ]; do sleep 0.05; done
"""
CUT_OFF = "[ ! -e half.txt ] || { echo rest > rest.txt; exit; }; echo half > half.txt; exec sleep 600"
OFTEN = "checkpoints: 0.2"


def checkpoints(repo: Path) -> list[str]:
    return git(repo, "for-each-ref", "--format=%(refname)", "refs/shoal/checkpoint").splitlines()


def list_files(repo: Path, commit: str) -> list[str]:
    return git(repo, "diff", "--name-only", "main", commit).splitlines()


def wait_for_checkpoint(run: Waiting, number: int) -> str:
    """Wait until the checkpoint exists, and return its commit."""
    return str(run.until("CheckpointKept", number=number)["commit"])


def test_only_what_changed_is_kept_until_clean(repo: Path, shoal: Shoal, tmp_path: Path) -> None:
    written(repo, ONE, runtime=f"{CHEAP}, {OFTEN}", w=f"GO={tmp_path}\n{IN_TWO_PARTS}")
    before = git(repo, "status", "--porcelain"), git(repo, "rev-parse", "main"), git(repo, "branch")
    with started(repo, SHOAL, "run", "p.yaml", "--events") as run:
        session = run.until("SessionStarted")["session"]
        first = wait_for_checkpoint(run, 1)
        (tmp_path / "1").touch()
        second = wait_for_checkpoint(run, 2)
        refs = checkpoints(repo)
        files = list_files(repo, first), list_files(repo, second)
        (tmp_path / "2").touch()
        result = run.until("SessionEnded")["result"]
        assert run.process.wait(timeout=60) == 0

    assert files == (["one.txt"], ["one.txt", "two.txt"])
    assert refs == [f"refs/shoal/checkpoint/{session}/{number}" for number in (1, 2)]
    assert git(repo, "rev-parse", f"{second}^") == before[1]
    assert list_files(repo, result["branch"]) == ["one.txt", "two.txt"]
    assert checkpoints(repo) == refs
    assert shoal("clean").code == 0
    assert checkpoints(repo) == []
    after = git(repo, "branch").splitlines()
    assert (git(repo, "status", "--porcelain"), git(repo, "rev-parse", "main")) == before[:2]
    assert [line for line in after if "agent/" not in line] == before[2].splitlines()


def killed_after_checkpoint(repo: Path, runtime: str) -> str:
    """Kill Shoal once a checkpoint exists, and return the session."""
    written(repo, ONE, runtime=f"{runtime}, {OFTEN}", w=CUT_OFF)
    with started(repo, SHOAL, "run", "p.yaml", "--events") as run:
        session = str(run.until("CheckpointKept")["session"])
        run.process.send_signal(signal.SIGKILL)
        assert run.process.stdout is not None
        run.process.stdout.read()
    return session


def lose_files(repo: Path, session: str) -> None:
    """Remove what a crashed machine has not written to its disk."""
    for place in list_mounts(repo / ".shoal"):
        unmount(place)
    subprocess.run(
        ["chmod", "-R", "u+rwx", repo / ".shoal/boxes" / session], check=True
    )  # overlayfs takes its own away
    shutil.rmtree(repo / ".shoal/boxes" / session)
    shutil.rmtree(repo / ".shoal/workspaces", ignore_errors=True)


@pytest.mark.parametrize("strategy", ["overlay", pytest.param("worktree", marks=pytest.mark.deep)])
@pytest.mark.parametrize("sandbox", ["bubblewrap", pytest.param("none", marks=pytest.mark.deep)])
def test_an_agent_whose_files_are_gone_goes_on_from_its_last_checkpoint(
    repo: Path, shoal: Shoal, strategy: str, sandbox: str
) -> None:
    session = killed_after_checkpoint(repo, f"sandbox: {sandbox}, network: host, isolation_strategy: {strategy}")
    lose_files(repo, session)

    said = shoal("resume")

    assert said.code == 0, said.err
    assert "its files are gone; its work is taken from its last checkpoint 1" in " ".join(said.out.split())
    report = json.loads(shoal("status", "--json").out)
    (worker,) = report["steps"][0]["worker_results"]
    assert list_files(repo, worker["branch"]) == ["half.txt", "rest.txt"]
    assert shoal("clean").code == 0
    assert checkpoints(repo) == [], "its work is on a branch now"


def test_clean_removes_the_checkpoints_of_a_killed_session(repo: Path, shoal: Shoal) -> None:
    session = killed_after_checkpoint(repo, CHEAP)

    tried, cleaned = shoal("clean", "--dry-run"), shoal("clean")

    assert tried.code == 0
    assert cleaned.code == 0, cleaned.err
    assert f"recovered {session}: agent/s/" in cleaned.out
    assert f"refs/shoal/checkpoint/{session}" in cleaned.out
    assert checkpoints(repo) == []


def test_a_checkpoint_that_cannot_be_kept_is_noted_and_fails_nobody(repo: Path, shoal: Shoal, tmp_path: Path) -> None:
    written(repo, ONE, runtime=f"{CHEAP}, {OFTEN}", w=f"GO={tmp_path}\n{IN_TWO_PARTS}")
    git(repo, "update-ref", "refs/shoal/checkpoint", "main")  # where the folder of the refs has to be
    with started(repo, SHOAL, "run", "p.yaml", "--events") as run:
        noted = run.until("AgentActed")["text"]
        git(repo, "update-ref", "-d", "refs/shoal/checkpoint")
        kept = wait_for_checkpoint(run, 1)
        (tmp_path / "1").touch()
        (tmp_path / "2").touch()
        assert run.process.wait(timeout=60) == 0

    assert noted.startswith("no checkpoint was made: refs/shoal/checkpoint/s-")
    assert list_files(repo, kept) == ["one.txt"]
    assert noted in shoal("logs", "s").out


def test_no_checkpoints_are_kept_where_they_are_not_wanted(repo: Path, tmp_path: Path) -> None:
    written(repo, ONE, runtime=f"{CHEAP}, checkpoints: false", w="echo one > one.txt; sleep 0.6")
    done = subprocess.run([SHOAL, "run", "p.yaml", "--events"], cwd=repo, capture_output=True, text=True, check=True)

    assert "SessionEnded" in done.stdout
    assert "CheckpointKept" not in done.stdout
