"""Two Shoals on one repository: a run has one owner, whom the other names, and two runs do not interfere."""

import os
import platform
import signal
import time
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from shoal.model.events import RunResumed
from shoal.store.fold import fold
from shoal.store.reader import read_events
from tests.conftest import git
from tests.faults.invariants import Untouched, find_violations
from tests.faults.points import Kill, Launch
from tests.faults.scene import Scene, make_scene
from tests.outside import wait_until

TIMES = [pytest.param(5, marks=pytest.mark.deep), *(pytest.param(25, marks=pytest.mark.kills) for _ in range(4))]
LEAD_SECONDS = 0.05
WAIT_SECONDS = 60
BLOCKED = """\
steps:
  - {name: only, agent: work, prompt: "echo $$ > $OUTSIDE/begun; while [ ! -e $OUTSIDE/go ]; do sleep 0.02; done"}
"""
ONE_TASK = 'steps: [{name: only, agent: work, prompt: "true"}]\n'
STUBBORN = """\
steps:
  - {name: only, agent: work, prompt: "trap : TERM INT; echo $$ > $OUTSIDE/begun; while [ ! -e $OUTSIDE/go ]; do sleep 0.02; done"}
"""


def start_both(scene: Scene, *words: str) -> list[tuple[Launch, BaseProcess]]:
    """Start a command twice in the same moment."""
    at = time.monotonic() + LEAD_SECONDS
    launches = [scene.launch(*words, at=at) for _ in range(2)]
    return [(launch, launch.start()) for launch in launches]


def end(process: BaseProcess) -> int | None:
    """Wait for the end of a command, and give its exit code."""
    process.join(WAIT_SECONDS)
    code = process.exitcode
    process.kill()
    process.join()
    return code


def errors_of(launch: Launch) -> str:
    return Path(f"{launch.said}.err").read_text()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", TIMES)
def test_of_two_that_resume_a_run_in_the_same_moment_one_owns_it_and_is_named_to_the_other(
    tmp_path: Path, times: int
) -> None:
    scene = make_scene(tmp_path / "scene", BLOCKED, merge="")
    before = Untouched.of(scene.repo)
    assert scene.start(*scene.words, kill=Kill("after AgentStarted", 1)) == -9

    for _ in range(times):
        (scene.outside / "begun").unlink(missing_ok=True)
        both = start_both(scene, "resume", "--events")
        wait_until((scene.outside / "begun").exists)
        (ended,) = connection.wait([process.sentinel for _, process in both], timeout=WAIT_SECONDS)
        (loser, lost), (winner, won) = sorted(both, key=lambda entry: entry[1].sentinel != ended)
        won.kill()

        assert (end(lost), end(won)) == (2, -9), errors_of(loser)
        assert f"is still running (process {won.pid} on {platform.node()})" in errors_of(loser)
        scene.note_end(winner, -9)
    (scene.outside / "go").touch()
    assert scene.settle() == 0, scene.said()

    epochs = [recorded.event.epoch for recorded in read_events(scene.paths) if isinstance(recorded.event, RunResumed)]
    assert epochs == list(range(1, times + 2))
    assert find_violations(scene, before, declared=None) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", TIMES)
def test_two_runs_that_start_in_the_same_moment_both_succeed(tmp_path: Path, times: int) -> None:
    """Each time in a repository where nothing ran before, so that both make its state."""
    for number in range(times):
        scene = make_scene(tmp_path / f"scene-{number}", ONE_TASK, merge="")
        before = Untouched.of(scene.repo)

        both = start_both(scene, *scene.words)

        assert [end(process) for _, process in both] == [0, 0], [errors_of(launch) for launch, _ in both]
        runs = fold(read_events(scene.paths)).runs.values()
        assert [run.status.value for run in runs] == ["succeeded", "succeeded"]
        assert len(git(scene.repo, "for-each-ref", "refs/heads/agent").splitlines()) == 2
        assert find_violations(scene, before, declared=None) == []


def test_a_run_that_is_being_stopped_is_not_resumed_before_it_has_ended(tmp_path: Path) -> None:
    """Its agent does not stop when asked, so its Shoal waits for it: another one leaves both alone."""
    scene = make_scene(tmp_path / "scene", STUBBORN, merge="")
    before = Untouched.of(scene.repo)
    old = scene.launch(*scene.words)
    process = old.start()
    wait_until((scene.outside / "begun").exists)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    wait_until(lambda: "stopping" in errors_of(old))

    refused = scene.launch("resume")
    assert refused.run() == 2
    assert f"is still running (process {process.pid} on {platform.node()})" in errors_of(refused)
    assert scene.start("clean") == 0, "which would bring in what a dead run left"
    assert scene.starts()["only-0"] == 1

    assert end(process) == 130
    scene.note_end(old, 130)
    (scene.outside / "go").touch()
    assert scene.settle() == 0
    assert scene.starts()["only-0"] == 2
    assert find_violations(scene, before, declared=None) == []
