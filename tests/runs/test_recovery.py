"""After a kill -9 of Shoal itself, the next start brings in what its agents had done."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.model.status import Status
from shoal.store.fold import fold
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from tests.acting import assert_nothing_left, fingerprint, ran, step
from tests.conftest import git

PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.acting import ran, step

def told(recorded):
    print(type(recorded.event).__name__, getattr(recorded.event, "text", ""), flush=True)

asyncio.run(ran(Path(sys.argv[1]), step("work", sys.argv[3], 2), strategy=sys.argv[2], listen=told))
"""


WORK = "echo half > half; git add half; git commit -qm half; echo more > more; echo ready; sleep 3456"


def killed_while_working(repo: Path, strategy: str, script: str = WORK) -> None:
    """Kill Shoal itself while two agents sleep."""
    here = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{here}:{here / 'src'}"}
    argv = [sys.executable, "-c", PROGRAM, str(repo), strategy, script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=here) as process:
        assert process.stdout is not None
        ready = 0
        for line in process.stdout:
            ready += line == "Output ready\n"
            if ready == 2:
                break
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("strategy", ["overlay", "worktree", pytest.param("directory", marks=pytest.mark.deep)])
async def test_the_work_of_a_killed_run_is_brought_in_by_the_next(repo: Path, strategy: str) -> None:
    before = fingerprint(repo)
    killed_while_working(repo, strategy)

    await ran(repo, step("next", "true"), strategy=strategy)

    paths = StatePaths.of(repo)
    lost, after = fold(read_events(paths)).runs.values()
    results = [session.result for session in lost.steps["work"].sessions.values()]
    assert after.status is Status.SUCCEEDED
    assert lost.status.is_ended
    assert len(results) == 2
    for result in results:
        assert result is not None
        assert result.status is Status.LOST
        assert git(repo, "show", f"{result.branch}:half") == "half"
        assert git(repo, "show", f"{result.branch}:more") == "more"
        assert git(repo, "log", "--format=%s", f"main..{result.branch}").splitlines()[-1] == "half"
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


@pytest.mark.deep
async def test_sweeping_twice_changes_nothing_more(repo: Path) -> None:
    killed_while_working(repo, "overlay")
    await ran(repo, step("next", "true"))
    refs = git(repo, "for-each-ref")

    await ran(repo, step("next", "true"))

    assert git(repo, "for-each-ref") == refs


async def test_a_run_that_lives_is_left_alone(repo: Path) -> None:
    import asyncio

    async def inner() -> None:
        report = await ran(repo, step("inner", "true"))
        assert report.status is Status.SUCCEEDED

    async with asyncio.TaskGroup() as group:
        outer = group.create_task(ran(repo, step("outer", "echo o > o; sleep 2")))
        await asyncio.sleep(1)
        group.create_task(inner())

    assert outer.result().status is Status.SUCCEEDED
    assert_nothing_left(repo)
