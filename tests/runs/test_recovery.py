"""After a kill -9 of Shoal itself, the next start brings in what its agents had done."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.limits.cgroups import Fleet
from shoal.model.events import Output, Recorded
from shoal.model.status import Status
from shoal.store.fold import fold
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from tests.acting import assert_nothing_left, cleaned, fingerprint, ran, shown, step
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
        assert result.status is Status.INTERRUPTED
        assert git(repo, "show", f"{result.branch}:half") == "half"
        assert git(repo, "show", f"{result.branch}:more") == "more"
        assert git(repo, "log", "--format=%s", f"main..{result.branch}").splitlines()[-1] == "half"
    assert lost.status is Status.INTERRUPTED
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


async def test_the_work_of_a_killed_run_is_brought_in_after_its_repository_was_moved(repo: Path) -> None:
    killed_while_working(repo, "overlay")
    moved = repo.with_name("elsewhere")
    repo.rename(moved)

    done = await cleaned(moved)

    assert (len(done.brought_in), done.failures) == (2, ())
    for result in done.brought_in:
        assert git(moved, "show", f"{result.branch}:more") == "more"
    assert_nothing_left(moved)


if os.geteuid() == 0:  # only root may make a file immutable

    async def test_what_cannot_be_brought_in_is_named_until_it_is(repo: Path) -> None:
        killed_while_working(repo, "overlay")
        stuck = sorted(StatePaths.of(repo).session_dirs.glob("*/upper/more"))
        subprocess.run(["chattr", "+i", *stuck], check=True)
        try:
            for _ in range(2):
                done = await cleaned(repo)
                assert sorted(failure.raw for failure in done.failures) == [str(path.parents[1]) for path in stuck]
                assert done.brought_in == ()
                assert len(list(StatePaths.of(repo).runs.glob("*.lock"))) == 1
        finally:
            subprocess.run(["chattr", "-i", *stuck], check=True)

        done = await cleaned(repo)
        assert (len(done.brought_in), done.failures) == (2, ())
        assert_nothing_left(repo)


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
async def test_work_that_could_not_be_kept_at_first_is_brought_in_by_the_next_command(
    repo: Path, strategy: str
) -> None:
    blocked = repo / ".git/refs/heads/agent"

    def block(recorded: Recorded) -> None:
        if isinstance(recorded.event, Output) and "ready" in recorded.event.text:
            subprocess.run(["rm", "-rf", blocked], check=True)
            blocked.write_text("in the way\n")

    report = await ran(repo, step("work", "echo more > more; echo ready; sleep 1"), strategy=strategy, listen=block)
    (first,) = report.steps[0].worker_results
    assert first.status is Status.FAILED
    assert first.raw is not None
    assert first.commit is None

    failed = await cleaned(repo)
    assert [failure.session for failure in failed.failures] == [first.session]
    blocked.unlink()
    await ran(repo, step("next", "true"), strategy=strategy)

    (again,) = fold(read_events(StatePaths.of(repo))).runs[report.run].steps["work"].sessions.values()
    assert again.result is not None
    assert again.result.status is Status.INTERRUPTED
    assert git(repo, "show", f"{again.result.branch}:more") == "more"
    assert_nothing_left(repo)


@pytest.mark.deep
async def test_sweeping_twice_changes_nothing_more(repo: Path) -> None:
    killed_while_working(repo, "overlay")
    await ran(repo, step("next", "true"))
    refs = git(repo, "for-each-ref")

    await ran(repo, step("next", "true"))

    assert git(repo, "for-each-ref") == refs


async def test_a_run_that_lives_is_left_alone(repo: Path) -> None:
    ready, stop = asyncio.Event(), asyncio.Event()

    def hear(recorded: Recorded) -> None:
        if isinstance(recorded.event, Output) and "ready" in recorded.event.text:
            ready.set()

    async with asyncio.TaskGroup() as group:
        outer = group.create_task(ran(repo, step("outer", WORK), stop=stop, listen=hear))
        await ready.wait()
        inner = await ran(repo, step("inner", "true"))
        is_left_alone = not outer.done()
        stop.set()

    (result,) = outer.result().steps[0].worker_results
    assert (inner.status, is_left_alone) == (Status.SUCCEEDED, True)
    assert (result.status, shown(repo, result, "more")) == (Status.CANCELLED, "more")
    assert_nothing_left(repo)


async def test_what_a_trial_of_the_host_left_is_removed_by_the_next_start_unless_its_process_lives(repo: Path) -> None:
    session_dirs = StatePaths.of(repo).session_dirs
    with subprocess.Popen(["true"]) as ended:
        dead = f"trial-shoal-{Path('/proc/self/ns/pid').stat().st_ino}-{ended.pid}-1-00ff"
    alive = f"trial-{Fleet.ours().name}"
    for name in (dead, alive):
        (session_dirs / name / "target").mkdir(parents=True)

    await ran(repo, step("next", "true"))

    assert [path.name for path in session_dirs.iterdir()] == [alive]
