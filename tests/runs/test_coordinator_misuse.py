"""The coordinator misused: listeners that raise, bad input on the way, and one used again."""

import asyncio
from pathlib import Path

import pytest

from shoal import Task
from shoal.errors import BadInput
from shoal.model.events import Recorded
from shoal.model.task import TaskLike
from tests.acting import assert_nothing_left
from tests.runs.coordinating import coordinator, statuses


async def test_a_listener_that_raises_is_let_go_and_the_work_goes_on(repo: Path) -> None:
    heard = []

    def loud(recorded: Recorded) -> None:
        heard.append(recorded)
        raise RuntimeError("no")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    results = await coordinator(repo, listen=loud).run_agents(["echo w > w"])

    assert statuses(results) == ["succeeded"]
    assert len(heard) == 1


async def test_bad_input_in_the_middle_of_a_stream_is_raised_and_the_rest_ended(repo: Path) -> None:
    tasks: list[TaskLike] = ["echo 1 > w", Task("x", agent="nobody"), *["echo 2 > w; sleep 3.5"] * 5]

    async with coordinator(repo, max_concurrent=2) as task_run:
        with pytest.raises(BadInput, match="nobody"):
            async for _ in task_run.stream(tasks, ordered=True):
                pass
        after = await task_run.run_command("true")

    assert after.status.is_good
    assert_nothing_left(repo)


async def test_after_its_end_a_coordinator_opens_a_run_for_each_call(repo: Path) -> None:
    task_run = coordinator(repo)
    async with task_run:
        with pytest.raises(BadInput, match="open already"):
            await task_run.__aenter__()
        first = await task_run.run_command("true")

    second = await task_run.run_command("true")

    assert first.status.is_good
    assert second.status.is_good
    assert task_run.active_sessions == {}
    with pytest.raises(BadInput, match="not open"):
        _ = task_run.report
    assert_nothing_left(repo)


def test_a_plain_script_may_use_one_coordinator_again_and_again(repo: Path) -> None:
    task_run = coordinator(repo)

    done = [task_run.run_agents_sync(["true", "true"]) for _ in range(2)]

    assert [statuses(results) for results in done] == [["no_changes"] * 2] * 2
