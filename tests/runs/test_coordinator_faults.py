"""The coordinator under stress: cancelled at every moment, interrupted and killed."""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal import Task
from shoal.errors import BadInput
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from tests.acting import assert_nothing_left, fingerprint
from tests.conftest import git
from tests.runs.coordinating import LONG, brought_in, coordinator, statuses, works

# Cancelling


@pytest.mark.parametrize(
    "moment", [0.02, 0.2, 1.0, *(pytest.param(one, marks=pytest.mark.deep) for one in (0.0, 0.08, 0.5, 1.6))]
)
@pytest.mark.parametrize("cancels", [1, 2])
async def test_cancelled_at_any_moment_nothing_is_lost_and_nothing_left(
    repo: Path, moment: float, cancels: int
) -> None:
    """Some wait for a slot, some open, run, seal or import; twice cancelled, the next start brings in what was left."""
    before = fingerprint(repo)
    tasks = [f"echo {number} > w; sleep 0.{number}; echo done" for number in range(6)]

    async def work() -> list[WorkerResult]:
        async with coordinator(repo, max_concurrent=3) as task_run:
            return await task_run.run_agents(tasks)

    doing = asyncio.create_task(work())
    await asyncio.wait((doing,), timeout=moment)
    for _ in range(cancels):
        doing.cancel()
        await asyncio.sleep(0.01)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(doing), LONG)
    await brought_in(repo)

    assert set(works(repo)) <= set("012345")
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


async def test_a_storm_of_cancels_over_many_patterns_never_hangs(repo: Path) -> None:
    dice = random.Random(4)

    async with coordinator(repo, max_concurrent=3) as task_run:

        async def streamed() -> list[WorkerResult]:
            async with contextlib.aclosing(task_run.stream(["echo s > w; sleep 0.2"] * 4)) as results:
                return [result async for result in results]

        calls = [
            lambda: task_run.run_agents(["echo a > w; sleep 0.3", ("b", "sleep 0.3", ["task-1"])]),
            lambda: task_run.race(["sleep 0.4", "sleep 0.5", "exit 1"]),
            lambda: task_run.settled(["sleep 0.3"] * 3),
            lambda: task_run.run_command("sleep 0.3"),
            streamed,
        ]
        tasks = [asyncio.create_task(dice.choice(calls)()) for _ in range(12)]
        for task in tasks:
            await asyncio.sleep(dice.random() / 5)
            if dice.random() < 0.8:
                task.cancel()
        ended, hung = await asyncio.wait(tasks, timeout=LONG)
        limiter = task_run._task_run.runner.limiter if task_run._task_run else None

    assert hung == set()
    assert limiter is not None
    assert (limiter.active, limiter.waiting) == (0, 0)
    assert all(task.cancelled() or task.exception() is None or isinstance(task.exception(), BadInput) for task in ended)
    assert_nothing_left(repo)


@pytest.mark.deep
async def test_retries_a_race_and_a_deadline_together_end_in_time(repo: Path) -> None:
    stubborn = Task("exit 1", retry={"max_attempts": 50, "wait_seconds": 0.1})

    async with coordinator(repo, max_concurrent=2) as task_run:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await task_run.race([stubborn, replace(stubborn, prompt="sleep 30; exit 1")])
        results = await task_run.run_agents([stubborn, "sleep 0.1; echo w > w"], deadline=3)
        took = time.monotonic() - began

    assert results[0].status in (Status.FAILED, Status.CANCELLED)
    assert results[1].status is Status.SUCCEEDED
    assert took < LONG
    assert_nothing_left(repo)


async def test_ended_before_its_wall_stands_it_is_timed_out_and_not_broken(repo: Path) -> None:
    results = await coordinator(repo).run_agents([Task("sleep 5", timeout=0.001)] * 3)

    assert statuses(results) == ["timed_out"] * 3, results


# Killing

KILLED = """
import asyncio, sys
from shoal import AgentCoordinator
agent = {"adapter": "command", "command": ["/bin/sh", "-c", 'eval "$(head -n 1)"']}

def heard(recorded):
    if getattr(recorded.event, "text", "") .startswith("ready"):
        print("ready", flush=True)

async def main():
    async with AgentCoordinator(sys.argv[1], agent=agent, listen=heard) as crew:
        await crew.run_agents([
            ("one", "echo 1 > w; echo 1 > one"), ("two", "echo 2 > two"),
            ("both", "echo 3 > w; echo ready; sleep 3333", ["one", "two"]),
        ])

asyncio.run(main())
"""


async def test_killed_on_a_merged_base_the_next_start_brings_all_in_and_unpins(repo: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(repo)], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        pins = git(repo, "for-each-ref", "refs/shoal/base").splitlines()
        child.send_signal(signal.SIGKILL)
    git(repo, "gc", "--quiet", "--prune=now")  # the merged base is held by its pin alone

    await brought_in(repo)

    assert len(pins) == 2
    branch = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent/both")
    assert [git(repo, "show", f"{branch}:{name}") for name in ("w", "one", "two")] == ["3", "1", "2"]
    assert_nothing_left(repo)


async def test_pins_of_a_run_that_was_cut_off_at_its_very_end_are_let_go(repo: Path) -> None:
    git(repo, "update-ref", "refs/shoal/base/coordinator-20200101-abcd+123456789abc", "HEAD")

    async with coordinator(repo) as task_run:
        held = git(repo, "for-each-ref", "--format=%(refname)", "refs/shoal/base").splitlines()
        assert (await task_run.run_command("true")).status.is_good

    assert len(held) == 1
    assert_nothing_left(repo)


# Ctrl-C

INTERRUPTED = """
import sys
from shoal import AgentCoordinator
agent = {"adapter": "command", "command": ["/bin/sh", "-c", 'eval "$(head -n 1)"']}

def heard(recorded):
    if getattr(recorded.event, "text", "").startswith("ready"):
        print("ready", flush=True)

try:
    AgentCoordinator(sys.argv[1], 1, agent=agent, listen=heard, grace=0.5).run_agents_sync(
        ["echo kept > w; echo ready; sleep 4444", "echo never > w"])
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("times", [1, 2])
async def test_ctrl_c_in_a_plain_script_keeps_the_work(repo: Path, times: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(repo)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for _ in range(times):
            child.send_signal(signal.SIGINT)
            await asyncio.sleep(0.05)
        said = child.stdout.read()
        child.wait(LONG)
    await brought_in(repo)

    assert times == 2 or said == "interrupted\n"
    assert works(repo) == ["kept"]
    assert_nothing_left(repo)
