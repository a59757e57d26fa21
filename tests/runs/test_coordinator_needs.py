"""Tasks that need others: each stands on their work, and what cannot run is skipped."""

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.adapters.command import CommandAdapter
from shoal.errors import Broken
from shoal.model.agent import AgentSpec
from shoal.model.events import Recorded
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.patterns import Limiter
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.runs.task_run import run_task_graph
from shoal.sessions.worker import WorkerSpec
from shoal.steps.admission import Admission
from shoal.steps.attempts import WorkerRunner
from tests.acting import assert_nothing_left, shown
from tests.conftest import git, make_repo
from tests.runs.coordinating import coordinator, statuses


async def test_a_need_without_changes_hands_on_what_it_stood_on(repo: Path) -> None:
    tasks = [("make", "echo made > made"), ("check", "test -f made", ["make"]), ("use", "cat made > w", ["check"])]

    results = await coordinator(repo).run_agents(tasks)

    assert statuses(results) == ["succeeded", "no_changes", "succeeded"]
    assert shown(repo, results[2], "w") == "made"


async def test_a_base_that_waits_for_a_slot_outlives_a_gc_and_a_lost_one_fails_alone(repo: Path) -> None:
    def gc(recorded: Recorded) -> None:
        if getattr(recorded.event, "step", "") == "slow" and type(recorded.event).__name__ == "SessionEnded":
            git(repo, "gc", "--quiet", "--prune=now")

    tasks = [
        ("one", "echo 1 > one"),
        ("two", "echo 2 > two"),
        ("slow", "sleep 1.5"),
        ("both", "cat one two > w", ["one", "two"]),
    ]
    async with coordinator(repo, max_concurrent=1, listen=gc) as task_run:
        results = await task_run.run_agents(tasks)
        gone = replace(results[0], commit="1" * 40)
        with pytest.raises(Broken, match="1111111"):
            await task_run.run_command("true", base=gone)
        after = await task_run.run_command("test -f w", base=results[3])

    assert statuses(results) == ["succeeded", "succeeded", "no_changes", "succeeded"]
    assert after.status.is_good
    assert_nothing_left(repo)


async def test_needs_whose_work_was_taken_away_fail_the_next_one_alone(repo: Path) -> None:
    def remove(recorded: Recorded) -> None:
        if getattr(recorded.event, "step", "") == "one" and type(recorded.event).__name__ == "SessionEnded":
            branch = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent/one")
            git(repo, "update-ref", "-d", branch)
            git(repo, "reflog", "expire", "--expire=now", "--all")
            git(repo, "gc", "--quiet", "--prune=now")

    tasks = [("one", "echo 1 > one"), ("next", "true", ["one"]), ("other", "sleep 1; echo w > w")]

    results = await coordinator(repo, listen=remove).run_agents(tasks)

    assert statuses(results) == ["succeeded", "failed", "succeeded"]
    assert results[1].error


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    """Up to 500 tasks, each with a few needs among those before it."""
    count = draw(st.integers(1, 500))
    dice = random.Random(draw(st.integers(0, 2**32)))
    names = [f"t{number}" for number in range(count)]
    return {
        name: tuple(dict.fromkeys(dice.choices(names[:number], k=dice.randint(0, 3)))) if number else ()
        for number, name in enumerate(names)
    }


@settings(max_examples=15, deadline=None)
@given(needs=graphs(), seed=st.integers(0, 2**32))
def test_each_task_runs_after_its_needs_and_what_cannot_run_is_skipped(
    shared_repo: Path, needs: dict[str, tuple[str, ...]], seed: int
) -> None:
    dice = random.Random(seed)
    bad = {name for name in needs if dice.random() < 0.1}
    order: list[str] = []

    async def scheduled() -> dict[str, WorkerResult]:
        async with open_run(RunRequest(folder=shared_repo, environ=os.environ)) as opened:
            context = opened.context
            runner = WorkerRunner(context, Limiter(5), Admission(context.paths.root))
            workers = {name: worker(name, needs[name]) for name in needs}

            async def work(own: WorkerSpec) -> None:
                await asyncio.sleep(dice.random() / 1000)
                order.append(own.step)
                status = Status.FAILED if own.step in bad else Status.NO_CHANGES
                runner.note(own, own.result_without_start(status))

            shuffled = dice.sample(list(workers.values()), len(workers))
            await run_task_graph(runner, shuffled, work)
            return {name: runner.result(workers[name]) for name in needs}

    results = asyncio.run(scheduled())

    place = {name: number for number, name in enumerate(order)}
    lost: set[str] = set()
    for name, own in needs.items():
        if lost.union(bad).intersection(own):
            lost.add(name)
        expected = Status.SKIPPED if name in lost else Status.FAILED if name in bad else Status.NO_CHANGES
        assert results[name].status is expected
        assert (name in place) == (name not in lost)
        assert name in lost or all(place[need] < place[name] for need in own)


def worker(name: str, needs: tuple[str, ...]) -> WorkerSpec:
    agent = AgentSpec(name="x", adapter="command", command=("true",))
    task = ResolvedTask(name=name, prompt="x", agent=agent)
    return WorkerSpec(step=name, index=0, count=1, task=task, adapter=CommandAdapter(), needs=needs)


@pytest.fixture(scope="module")
def shared_repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repo(tmp_path_factory.mktemp("shared") / "repo")
