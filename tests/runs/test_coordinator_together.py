"""Calls, patterns and coordinators at one time: one limit holds, and none disturbs another."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from shoal import AgentCoordinator, Task, patterns
from shoal.model.results import WorkerResult
from tests.acting import assert_nothing_left
from tests.runs.coordinating import LONG, coordinator, statuses


async def test_calls_at_one_time_share_a_run_and_its_limit(repo: Path) -> None:
    """The first to end must not take the run from under the others."""
    task_run = coordinator(repo, max_concurrent=2)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(task_run.active_sessions))
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    done = [asyncio.create_task(task_run.run_agents([f"sleep 0.{n}; echo {n} > w"] * 2)) for n in (1, 4, 6)]
    await asyncio.wait(done, timeout=LONG)
    watching.cancel()

    assert [statuses(task.result()) for task in done] == [["succeeded"] * 2] * 3
    assert 1 <= most <= 2
    assert len(list((repo / ".shoal/workspaces").iterdir())) == 0
    assert_nothing_left(repo)


async def test_two_coordinators_in_one_process_do_not_disturb_each_other(repo: Path) -> None:
    async with coordinator(repo, 2) as one, coordinator(repo, 2) as other, asyncio.TaskGroup() as group:
        done = [group.create_task(task_run.run_agents(["echo w > w; sleep 0.2"] * 4)) for task_run in (one, other)]

    assert [statuses(task.result()) for task in done] == [["succeeded"] * 4] * 2
    assert_nothing_left(repo)


OTHER = """
import sys
from shoal import AgentCoordinator
agent = {"adapter": "command", "command": ["/bin/sh", "-c", 'eval "$(head -n 1)"']}
results = AgentCoordinator(sys.argv[1], 3, agent=agent).run_agents_sync(
    [("a", "echo 1 > a"), ("b", "echo 1 > b"), ("c", "cat a b > c", ["a", "b"])] + ["echo w > w"] * 3)
print(*(result.status.value for result in results))
"""


def test_two_processes_on_one_repository_do_not_disturb_each_other(repo: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", OTHER, str(repo)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [child.communicate(timeout=LONG)[0].split() for child in children]

    assert said == [["succeeded"] * 6] * 2
    assert_nothing_left(repo)


async def test_patterns_nested_in_patterns_keep_to_one_limit_and_end(repo: Path) -> None:
    most = 0

    async def watch(task_run: AgentCoordinator) -> None:
        nonlocal most
        while True:
            most = max(most, len(task_run.active_sessions))
            await asyncio.sleep(0.005)

    async with coordinator(repo, max_concurrent=2) as task_run, asyncio.timeout(LONG * 2):
        watching = asyncio.create_task(watch(task_run))

        async def raced(number: int) -> WorkerResult:
            calls = [lambda: task_run.run_command("sleep 0.1"), lambda: task_run.run_command("exit 1")]
            winner = await patterns.race(calls, accept=lambda result: result.status.is_good)
            (checked,) = await task_run.settled([Task.command("sleep 0.05", base=winner)])
            return checked

        seen = []
        async for result in task_run.stream(["sleep 0.1"] * 4):
            seen.append(result)
            outcomes = await patterns.map(raced, range(3))
            seen += [outcome.value for outcome in outcomes if isinstance(outcome, patterns.Ok)]
        watching.cancel()

    assert len(seen) == 16
    assert all(result.status.is_good for result in seen)
    assert 1 <= most <= 2
    assert_nothing_left(repo)


async def endless() -> AsyncIterator[str]:
    while True:
        yield "true"


async def test_an_endless_stream_keeps_nothing_of_what_it_gave(repo: Path) -> None:
    async with coordinator(repo, max_concurrent=4) as task_run:
        count = 0
        async with contextlib.aclosing(task_run.stream(endless())) as results:
            async for _ in results:
                count += 1
                if count == 20:
                    break
        assert task_run._task_run is not None
        kept = len(task_run._task_run.runner.results)

    assert kept <= 4
    assert_nothing_left(repo)
