"""`shoal diff` and `shoal open` of an agent that still works: its files as they are now, and it does not notice."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.workspaces.mount import list_mounts, unmount
from tests.cli.conftest import SHOAL, Shoal
from tests.cli.flows import written
from tests.cli.test_approve import Waiting, started
from tests.conftest import git

STEPS = "steps: [{name: done, agent: done, prompt: x}, {name: work, agent: work, prompt: x}]"
WORK = """\
git config core.fsmonitor "touch $OUT/pwned; false"
git config filter.x.clean "touch $OUT/pwned"
echo '*.txt filter=x' > .gitattributes
echo one > one.txt
echo READY
while [ ! -e "$OUT/1" ]; do sleep 0.05; done
echo two > two.txt
ls -A > seen.txt
echo MORE
while [ ! -e "$OUT/2" ]; do sleep 0.05; done
"""


class Running:
    """A run with an agent that has ended and one that works, until it is told to go on."""

    def __init__(self, waiting: Waiting, out: Path) -> None:
        self.waiting, self.out = waiting, out
        waiting.until_said("READY")

    def end(self) -> int:
        (self.out / "1").touch()
        (self.out / "2").touch()
        assert self.waiting.process.stdout is not None
        self.waiting.process.stdout.read()
        return self.waiting.process.wait(timeout=60)


@pytest.fixture(params=["sandbox: bubblewrap", "sandbox: none, isolation_strategy: worktree"])
def running(repo: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    out = tmp_path / "out"
    out.mkdir()
    runtime = f"{request.param}, network: host, checkpoints: false, toolchains: ['{out}']"
    done = "echo done > done.txt"
    written(repo, STEPS, runtime=runtime, done=done, work=f"OUT='{out}'; export OUT\n{WORK}")
    with started(repo, SHOAL, "run", "p.yaml", "--events") as waiting:
        yield Running(waiting, out)
    for place in list_mounts(repo / ".shoal"):  # of a run that was killed
        unmount(place)


def test_the_work_of_a_running_agent_is_shown_and_it_does_not_notice(
    repo: Path, shoal: Shoal, running: Running
) -> None:
    before = git(repo, "status", "--porcelain"), git(repo, "rev-parse", "main")

    patch, names = shoal("diff", "work"), shoal("diff", "work", "--name-only")
    document = json.loads(shoal("diff", "work", "--json").out)

    assert patch.code == 0, patch.err
    assert "+one" in patch.out
    assert "is still running; this is its work so far" in patch.err
    assert names.out.split() == [".gitattributes", "one.txt"]
    assert [file["path"] for file in document["files"]] == [".gitattributes", "one.txt"]
    assert (document["running"], document["branch"]) == (True, None)
    assert (git(repo, "status", "--porcelain"), git(repo, "rev-parse", "main")) == before
    (running.out / "1").touch()
    running.waiting.until_said("MORE")
    assert shoal("diff", "work", "--name-only").out.split() == [".gitattributes", "one.txt", "seen.txt", "two.txt"]
    compared = shoal("diff", "done", "work", "--name-only")
    assert compared.out.split() == [".gitattributes", "done.txt", "one.txt", "seen.txt", "two.txt"]
    assert running.end() == 0
    assert not (running.out / "pwned").exists()
    seen = git(repo, "show", f"{_worker(shoal)['branch']}:seen.txt").split()
    assert sorted({*seen, ".git"}) == [".git", ".gitattributes", "README.md", "d0", "one.txt", "seen.txt", "two.txt"]
    assert "running" not in shoal("diff", "work").err
    assert shoal("clean").code == 0
    assert git(repo, "for-each-ref", "refs/shoal") == ""


def test_a_running_agent_is_opened_as_a_copy_that_is_read_only(repo: Path, shoal: Shoal, running: Running) -> None:
    first = shoal("open", "work")
    again = json.loads(shoal("open", "work", "--json").out)
    folder = Path(first.out.strip())
    (running.out / "1").touch()
    running.waiting.until_said("MORE")
    later = Path(shoal("open", "work").out.strip())

    assert first.code == 0, first.err
    assert "read-only" in first.err
    assert (again["path"], again["new"], again["running"]) == (str(folder), False, True)
    assert sorted(os.listdir(folder)) == [".gitattributes", "README.md", "d0", "one.txt"]
    assert (folder / "one.txt").stat().st_mode & 0o222 == 0
    assert later != folder
    assert (later / "two.txt").read_text() == "two\n"
    assert running.end() == 0
    assert not (running.out / "pwned").exists()
    assert shoal("clean", "--force").code == 0
    assert not folder.exists()


def test_a_run_that_was_killed_or_stands_still_has_no_snapshot(repo: Path, shoal: Shoal, running: Running) -> None:
    running.waiting.process.send_signal(signal.SIGKILL)
    running.waiting.process.wait()
    began = time.monotonic()

    said = shoal("diff", "work")

    assert (said.code, "`shoal clean` recovers its work" in said.err) == (2, True)
    assert time.monotonic() - began < 10
    (running.out / "1").touch()
    (running.out / "2").touch()


def _worker(shoal: Shoal) -> dict[str, Any]:
    steps = {step["step"]: step for step in json.loads(shoal("status", "--json").out)["steps"]}
    found: dict[str, Any] = steps["work"]["worker_results"][0]
    return found
