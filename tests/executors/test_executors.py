"""What every executor promises: a new one is added to the table, and has to pass unchanged."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.adapters.command import CommandAdapter
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.executors.kind import Executor
from shoal.executors.local import LocalExecutor
from shoal.model.events import Output, Recorded, SessionEnded, SessionStarted
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sessions.context import RunContext
from shoal.sessions.session_control import SessionControl
from shoal.sessions.worker import WorkerSpec
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from tests.acting import assert_nothing_left, shown, step

EXECUTORS: dict[str, Executor] = {"local": LocalExecutor()}
EVERY = pytest.mark.parametrize("executor", EXECUTORS.values(), ids=EXECUTORS)


def worker(script: str) -> WorkerSpec:
    return WorkerSpec(step="work", index=0, count=1, task=step("work", script).task, adapter=CommandAdapter())


@contextlib.asynccontextmanager
async def opened(repo: Path) -> AsyncIterator[RunContext]:
    async with open_run(RunRequest(folder=repo, environ=os.environ, grace=0.5)) as run:
        yield run.context


def sessions_with(repo: Path, kind: type[SessionStarted] | type[SessionEnded]) -> list[str]:
    found = [recorded.event for recorded in read_events(StatePaths.of(repo))]
    return [event.session for event in found if isinstance(event, kind)]


@EVERY
async def test_the_work_is_on_a_branch_and_the_result_is_reported_once(repo: Path, executor: Executor) -> None:
    reported: list[WorkerResult] = []
    async with opened(repo) as context:
        result = await executor.run(context, worker("echo new > made.txt"), reported.append)

    assert result.status is Status.SUCCEEDED
    assert shown(repo, result, "made.txt") == "new"
    assert reported == [result]
    assert sessions_with(repo, SessionStarted) == sessions_with(repo, SessionEnded) == [result.session]
    assert_nothing_left(repo)


@EVERY
async def test_an_agents_failure_is_a_result(repo: Path, executor: Executor) -> None:
    reported: list[WorkerResult] = []
    async with opened(repo) as context:
        result = await executor.run(context, worker("echo kept > kept.txt; exit 3"), reported.append)

    assert (result.status, result.exit_code) == (Status.FAILED, 3)
    assert shown(repo, result, "kept.txt") == "kept"
    assert reported == [result]


class BrokenAdapter(CommandAdapter):
    """An adapter with a bug."""

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        raise ValueError("a bug")


@EVERY
async def test_a_bug_is_raised_and_is_no_agents_failure(repo: Path, executor: Executor) -> None:
    reported: list[WorkerResult] = []
    with pytest.raises(ValueError, match="a bug"):
        async with opened(repo) as context:
            await executor.run(context, replace(worker("true"), adapter=BrokenAdapter()), reported.append)

    assert reported == []
    assert sessions_with(repo, SessionEnded) == []


@EVERY
async def test_a_cancelled_session_keeps_its_work_and_is_reported(repo: Path, executor: Executor) -> None:
    reported: list[WorkerResult] = []
    has_begun = asyncio.Event()

    def listen(recorded: Recorded) -> None:
        if isinstance(recorded.event, Output) and "begun" in recorded.event.text:
            has_begun.set()

    async with opened(repo) as context, asyncio.TaskGroup() as group:
        context.ledger.subscribe(listen)
        script = "echo begun > begun.txt; echo begun; sleep 600"
        running = group.create_task(executor.run(context, worker(script), reported.append))
        async with asyncio.timeout(60):
            await has_begun.wait()
        running.cancel()

    (result,) = reported
    assert result.status is Status.CANCELLED
    assert shown(repo, result, "begun.txt") == "begun"
    assert sessions_with(repo, SessionEnded) == [result.session]
    assert_nothing_left(repo)


@EVERY
async def test_a_stopped_session_keeps_its_work_and_names_who_stopped_it(repo: Path, executor: Executor) -> None:
    reported: list[WorkerResult] = []
    control = SessionControl()

    def listen(recorded: Recorded) -> None:
        if isinstance(recorded.event, Output) and "begun" in recorded.event.text:
            control.stop_for("ada")

    async with opened(repo) as context, asyncio.timeout(60):
        context.ledger.subscribe(listen)
        script = "echo begun > begun.txt; echo begun; sleep 600"
        result = await executor.run(context, worker(script), reported.append, control)

    assert (result.status, result.stopped_by, result.error) == (Status.CANCELLED, "ada", "stopped by ada")
    assert shown(repo, result, "begun.txt") == "begun"
    assert reported == [result]


@EVERY
async def test_sessions_run_side_by_side(repo: Path, executor: Executor) -> None:
    """Each has a workspace of its own, and none waits for another."""
    async with opened(repo) as context, asyncio.TaskGroup() as group:
        specs = [
            WorkerSpec(
                step="work", index=index, count=2, task=worker(f"echo {index} > n.txt").task, adapter=CommandAdapter()
            )
            for index in range(2)
        ]
        tasks = [group.create_task(executor.run(context, spec, lambda _: None)) for spec in specs]

    assert [shown(repo, task.result(), "n.txt") for task in tasks] == ["0", "1"]
