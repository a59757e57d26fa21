"""A run has one owner: of several resumes one wins, and a former owner writes nothing more."""

import itertools
import signal
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.cli.resuming import Scene, statuses
from tests.conftest import git


@pytest.fixture
def scene(repo: Path, shoal: Shoal, tmp_path: Path) -> Scene:
    return Scene(repo, tmp_path / "outside", shoal)


def test_of_two_resumes_at_the_same_moment_one_wins(scene: Scene) -> None:
    scene.write('steps:\n  - {name: only, agent: work, prompt: "true"}\n')
    scene.block("only-0")
    scene.interrupt("blocked only-0")
    scene.unblock()

    both = [
        subprocess.Popen([SHOAL, "resume"], cwd=scene.repo, env=environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[1] for process in both]

    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 2], [0, 0]), said  # one that looks when the other has ended finds nothing to resume
    if codes == [0, 2]:
        refusals = ("is still running (process", "was resumed by another process")
        assert any(text in line for line in said for text in refusals), said
    assert scene.starts() == Counter({"only-0": 2})


def test_an_owner_that_stood_still_while_another_took_its_run_over_writes_nothing_more(scene: Scene) -> None:
    scene.write(
        'steps:\n  - {name: a, agent: work, prompt: "true"}\n  - {name: b, agent: work, needs: [a], prompt: "true"}\n'
    )
    scene.block("a-0")
    with subprocess.Popen(
        [SHOAL, "run", "p.yaml", "--events"],
        cwd=scene.repo,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as former:
        assert former.stdout is not None
        next(line for line in former.stdout if "blocked a-0" in line)
        former.send_signal(signal.SIGSTOP)
        scene.unblock()
        for lock in scene.repo.glob(".shoal/runs/*.lock"):  # a lock that is lost, as on a network's disk
            lock.rename(f"{lock}.lost")
        for lost in scene.repo.glob(".shoal/runs/*.lost"):
            lost.with_suffix("").touch()
            lost.unlink()
        code, report = scene.report("resume")
        before = scene.shoal("status", "--json").out, git(scene.repo, "for-each-ref")
        former.send_signal(signal.SIGCONT)
        _, said = former.communicate(timeout=60)

    assert (code, statuses(report)) == (0, {"a": "succeeded", "b": "succeeded"})
    assert former.returncode == 3
    assert "was taken over by process" in said
    assert (scene.shoal("status", "--json").out, git(scene.repo, "for-each-ref")) == before
    assert scene.starts() == Counter({"a-0": 2, "b-0": 1})


@pytest.mark.deep
def test_of_twenty_resumes_at_the_same_moment_one_wins_and_the_others_name_it(scene: Scene) -> None:
    scene.write('steps:\n  - {name: only, agent: work, prompt: "true"}\n')
    scene.block("only-0")
    scene.interrupt("blocked only-0")

    all_of_them = [
        subprocess.Popen(
            [SHOAL, "resume", "--events"],
            cwd=scene.repo,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(20)
    ]
    with ThreadPoolExecutor(20) as pool:
        talks = {pool.submit(process.communicate): process for process in all_of_them}
        refused = {talks[talk]: talk.result()[1] for talk in itertools.islice(as_completed(talks), 19)}
        (owner,) = set(all_of_them) - set(refused)
        assert scene.shoal("stop").code == 0

    assert {process.returncode for process in refused} == {2}
    assert [said for said in refused.values() if f"is still running (process {owner.pid} on " not in said] == []
    assert scene.starts() == Counter({"only-0": 2})
