"""An interrupted delivery: the same command finishes it, and never mistakes a person's changes for its own."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.model.merge import DeliveryStatus
from tests.conftest import git
from tests.merge.delivering import BRANCH, at, status_of
from tests.merge.merging import merged, run_of, statuses

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
import shoal.merge.{module} as place
from tests.merge.merging import merged, report, worker

real, calls = place.{name}, [0]
async def deadly(*args, **more):
    calls[0] += 1
    done = await real(*args, **more) if {after} else None
    if calls[0] == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done if {after} else await real(*args, **more)
place.{name} = deadly
repo = Path(sys.argv[1])
run = report(repo, [worker(n, c) for n, c in enumerate(sys.argv[3:])], sys.argv[2])
asyncio.run(merged(repo, run, into="main"))
"""


@pytest.mark.parametrize(
    ("module", "name", "after", "call"),
    [
        pytest.param("deliver", "move", False, 1, marks=pytest.mark.deep),  # intended, not moved
        ("deliver", "move", True, 1),  # moved, not recorded
        ("merge", "deliver", False, 1),  # integrated, nothing delivered
        pytest.param(
            "deliver", "advance_checkout", False, 1, marks=pytest.mark.deep
        ),  # delivery intended, nothing touched
        ("deliver", "advance_checkout", True, 1),  # files moved, branch not
        ("deliver", "move", True, 2),  # branch moved, not recorded
    ],
)
def test_killed_in_any_phase_the_same_command_finishes_the_job(
    repo: Path, module: str, name: str, after: bool, call: int
) -> None:
    run = run_of(repo, {"a": "0\n"}, {"d0/f1.txt": None, "b": "1\n"}, {"a": "2\n"})
    commits = [str(one.commit) for one in run.steps[0].worker_results]
    script = KILLED.format(module=module, name=name, after=after, call=call)
    killed = subprocess.run(
        [sys.executable, "-c", script, str(repo), run.base, *commits],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -9, killed.stderr

    done = asyncio.run(merged(repo, run, into="main"))

    assert statuses(done) == {"s1": "merged", "s0": "merged", "s2": "conflicts"}
    assert at(repo) == at(repo, BRANCH)
    assert git(repo, "rev-list", "--count", "--no-merges", f"{run.base}..main") == "2"
    assert git(repo, "status", "--porcelain") == ""
    assert (repo / "a").read_text() == "0\n"
    assert git(repo, "fsck", "--strict", "--no-dangling") == ""


async def test_a_delivery_that_was_cut_off_never_takes_a_persons_change_for_its_own(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n", "README.md": "new\n"})
    script = KILLED.format(module="deliver", name="advance_checkout", after=True, call=1)
    commit = str(run.steps[0].worker_results[0].commit)
    root = str(Path(__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", script, str(repo), run.base, commit], cwd=root, env={**os.environ, "PYTHONPATH": root}
    )
    (repo / "README.md").write_text("mine\n")

    done = await merged(repo, run, into="main")

    assert status_of(done) is DeliveryStatus.LEFT
    assert (repo / "README.md").read_text() == "mine\n"
