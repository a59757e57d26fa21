"""The user goes on working in the repository during a run: with gc, and with the branch that the run merges into."""

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import git
from tests.faults.conftest import Undisturb
from tests.faults.invariants import Untouched, find_violations
from tests.faults.scene import RUNTIME, TWELVE_TASKS, Scene, make_scene
from tests.faults.test_two_shoals import BLOCKED, end, errors_of
from tests.outside import wait_until

PAUSE_SECONDS = 1.0
CLEARING = (
    ("reflog", "expire", "--expire=now", "--all"),
    ("gc", "--quiet", "--prune=now"),
    ("repack", "-a", "-d", "-q"),
    ("pack-refs", "--all", "--prune"),
)


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_a_users_gc_every_second_takes_nothing_of_a_run(tmp_path: Path, undisturbed: Undisturb) -> None:
    expected = undisturbed(TWELVE_TASKS, RUNTIME)
    scene = make_scene(tmp_path / "scene", TWELVE_TASKS)
    before = Untouched.of(scene.repo)
    is_over = threading.Event()
    rounds = 0

    def clear() -> None:
        nonlocal rounds
        while not is_over.is_set():
            began = time.monotonic()
            for words in CLEARING:  # what another git holds a lock of fails, as it would for the user
                subprocess.run(["git", *words], cwd=scene.repo, check=False, capture_output=True)
            rounds += 1
            is_over.wait(PAUSE_SECONDS - (time.monotonic() - began))

    user = threading.Thread(target=clear)
    user.start()
    try:
        code = scene.start(*scene.words)
    finally:
        is_over.set()
        user.join()

    assert rounds >= 2
    assert scene.outcome(code) == expected.outcome, scene.said()
    assert scene.starts() == expected.starts
    assert find_violations(scene, before) == []


def go_forward(repo: Path) -> None:
    (repo / "theirs.txt").write_text("theirs\n")
    git(repo, "add", "theirs.txt")
    git(repo, "commit", "-qm", "theirs")


def rewrite(repo: Path) -> None:
    git(repo, "switch", "-q", "-c", "elsewhere")
    git(repo, "update-ref", "refs/heads/main", git(repo, "commit-tree", "-m", "rewritten", "main^{tree}"))


def delete(repo: Path) -> None:
    git(repo, "switch", "-q", "-c", "elsewhere")
    git(repo, "branch", "-qD", "main")


def run_meanwhile(scene: Scene, meddle: Callable[[Path], None]) -> tuple[int | None, str, Untouched]:
    """Run, and let the user do something while the agent works; give the exit code, what was said and what was there."""
    launch = scene.launch(*scene.words)
    process = launch.start()
    wait_until((scene.outside / "begun").exists)
    meddle(scene.repo)
    then = Untouched.of(scene.repo)
    (scene.outside / "go").touch()
    code = end(process)
    scene.note_end(launch, code or 0)
    return code, errors_of(launch) + launch.said.read_text(), then


def test_work_is_merged_on_top_of_what_the_user_committed_meanwhile(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene", BLOCKED)

    code, said, then = run_meanwhile(scene, go_forward)

    assert code == 0, said
    assert {"theirs.txt", "only-0.txt"} <= set(git(scene.repo, "ls-tree", "--name-only", "main").split())
    assert find_violations(scene, then) == []


@pytest.mark.parametrize(("meddle", "said_of_it"), [(rewrite, "started from"), (delete, "no branch 'main'")])
def test_a_branch_that_the_user_rewrote_or_deleted_meanwhile_is_left_alone(
    tmp_path: Path, meddle: Callable[[Path], None], said_of_it: str
) -> None:
    scene = make_scene(tmp_path / "scene", BLOCKED)

    code, said, then = run_meanwhile(scene, meddle)

    assert code not in (0, None)
    assert said_of_it in said
    (branch,) = git(scene.repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").split()
    assert git(scene.repo, "show", f"{branch}:only-0.txt") == "by only-0"
    assert git(scene.repo, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/main") in then.refs | {""}
    scene.base = "elsewhere"
    if meddle is delete:
        git(scene.repo, "branch", "main", "elsewhere")  # the check looks at what is on it
    assert find_violations(scene, then) == []
