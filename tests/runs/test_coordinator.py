"""The coordinator: every pattern over sandboxed agents, results in order, nothing lost, nothing left."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal import AgentCoordinator, AgentFailed, Task
from shoal.errors import AllFailed, BadInput, QuorumMissed, UnknownName
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.model.task import TaskLike
from shoal.sessions.worker import WorkerSpec
from shoal.store.fold import fold
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from tests.acting import assert_nothing_left, fingerprint, shown
from tests.conftest import git

SHELL = {"adapter": "command", "command": ["/bin/sh", "-c", 'eval "$(head -n 1)"']}
"""An agent that does what the first line of its prompt says."""

SEED_CONFIG = {
    "max_concurrent_agents": 5,
    "isolation_strategy": "worktree",
    "execution_mode": "process",
    "database_strategy": "per_agent",
    "resource_limits": {"memory_mb": 1024, "cpu_percent": 50, "time_seconds": 3600},
    "auto_merge": False,
    "cleanup_on_complete": True,
}


def coordinator(repo: Path, max_concurrent: int = 5) -> AgentCoordinator:
    return AgentCoordinator(repo, max_concurrent, agent=SHELL, grace=0.5)


def statuses(results: list[WorkerResult]) -> list[str]:
    return [result.status.value for result in results]


async def test_texts_mappings_tuples_and_tasks_are_tasks_and_results_come_in_their_order(repo: Path) -> None:
    before = fingerprint(repo)
    tasks: list[TaskLike] = [
        "sleep 0.5; echo one > a",
        {"task": "echo two > a", "id": "second"},
        ("third", "echo three > a"),
        Task("exit 3", name="fourth"),
    ]

    async with coordinator(repo, max_concurrent=2) as task_run:
        results = await task_run.run_agents(tasks)
        report = task_run.report

    assert statuses(results) == ["succeeded", "succeeded", "succeeded", "failed"]
    assert [shown(repo, one, "a") for one in results[:3]] == ["one", "two", "three"]
    assert [(results[1].branch or "").split("/")[1], results[3].exit_code] == ["second", 3]
    assert [step.step for step in report.steps] == ["task-1", "second", "third", "fourth"]
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


def test_the_seeds_own_configuration_is_taken_as_it_stands_by_a_plain_script(repo: Path) -> None:
    task_run = AgentCoordinator(repo, config=SEED_CONFIG, agent=SHELL)

    results = task_run.run_agents_sync(["echo w > w"])

    assert task_run.max_concurrent == 5
    assert statuses(results) == ["succeeded"]
    with pytest.raises(UnknownName, match="max_concurrent_agents"):
        AgentCoordinator(repo, config={"max_concurent_agents": 5})
    with pytest.raises(UnknownName, match="shared"):
        AgentCoordinator(repo, config={**SEED_CONFIG, "database_strategy": "shard"})
    with pytest.raises(BadInput, match="add database_strategy='shared'"):
        AgentCoordinator(repo, config={**SEED_CONFIG, "database": "postgresql://db/x"})


async def test_a_task_starts_when_its_needs_ended_well_and_from_their_work(repo: Path) -> None:
    tasks: list[TaskLike] = [
        ("design", "echo design > design.md; echo 'the design is done'"),
        ("other", "echo other > other.md"),
        Task(
            'cat design.md other.md > built.md; cat "$SHOAL_INPUTS_DIR"/1-*.json > told.json',
            name="build",
            deps=["design", "other"],
            inputs=["design"],
        ),
        ("broken", "exit 1"),
        ("never", "echo x > x", ["broken"]),
        ("nor-this", "echo x > x", {"deps": ["never"]}),
    ]

    async with coordinator(repo) as task_run:
        results = await task_run.run_agents(tasks)

    assert statuses(results) == ["succeeded"] * 3 + ["failed", "skipped", "skipped"]
    assert shown(repo, results[2], "built.md") == "design\nother"
    assert '"status": "succeeded"' in shown(repo, results[2], "told.json")
    assert results[4].error == "dependency 'broken' failed"
    assert_nothing_left(repo)


async def test_needs_that_conflict_are_told_and_not_papered_over(repo: Path) -> None:
    tasks = [("one", "echo 1 > same"), ("two", "echo 2 > same"), ("both", "true", ["one", "two"])]

    results = await coordinator(repo).run_agents(tasks)

    assert statuses(results) == ["succeeded", "succeeded", "failed"]
    assert "conflicts in same" in (results[2].error or "")


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([("a", "x", ["b"]), ("b", "x", ["c"]), ("c", "x", ["a"])], "a → b → c → a"),
        ([("a", "x", ["nobody"])], "nobody"),
        ([("a", "x"), ("a", "y")], "two tasks are named 'a'"),
        ([{"promt": "x"}], "prompt"),
        ([("A!", "x")], "not a valid task name"),
        ([""], "is empty"),
        ([17], "is not a task"),
        ([Task("x", agent="nobody")], "nobody"),
        ([Task("x", base="nowhere")], "nowhere"),
        ([Task("x", files=["../../etc/passwd"])], "not a path inside"),
        ([Task("x", agent={"adapter": "command", "comand": ["true"]})], "did you mean"),
        ([Task("x", limits={"memory_mb": -1})], "memory_mb"),
        ([Task("x", retry=-1)], "not a number of retries"),
    ],
)
async def test_what_has_no_meaning_is_refused_before_anything_starts(
    repo: Path, tasks: list[object], words: str
) -> None:
    async with coordinator(repo) as task_run:
        with pytest.raises(BadInput) as refused:
            await task_run.run_agents(tasks)  # type: ignore[arg-type]
        assert task_run.report.steps == ()

    assert words in str(refused.value).replace("c → a → b → c", "a → b → c → a").replace(
        "b → c → a → b", "a → b → c → a"
    )


async def test_a_race_is_won_by_the_right_one_and_the_slow_ones_work_is_kept(repo: Path) -> None:
    """Must show 2: one quick and right, one quick and wrong, one slow."""
    tasks = [
        ("wrong", "echo wrong > w; exit 1"),
        ("slow", "echo partial > p; echo ready; sleep 4321; echo never > n"),
        ("right", "sleep 1; echo right > r"),
    ]

    async with coordinator(repo) as task_run:
        winner = await task_run.race(tasks)
        ended = time.monotonic()
        left = sleepers("4321")
        took = time.monotonic() - ended
        report = task_run.report

    assert shown(repo, winner, "r") == "right"
    assert left == []
    assert took < 1
    slow = next(step for step in report.steps if step.step == "slow").worker_results[0]
    assert slow.status is Status.CANCELLED
    assert shown(repo, slow, "p") == "partial"
    assert_nothing_left(repo)


def sleepers(argument: str) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", argument.encode()]:
            found.append(place.parent.name)
    return found


async def test_a_race_that_nobody_wins_says_why_each_lost(repo: Path) -> None:
    with pytest.raises(AllFailed) as lost:
        await coordinator(repo).race(["exit 3", "exit 4"])

    assert sorted(str(error) for error in lost.value.errors)[0].startswith("exit-3-")
    assert all(isinstance(error, AgentFailed) for error in lost.value.errors)


async def test_gather_ends_the_rest_at_the_first_failure_and_raises_it(repo: Path) -> None:
    async with coordinator(repo) as task_run:
        good = await task_run.gather(["echo a > a", "echo b > b"])
        with pytest.raises(AgentFailed) as failed:
            await task_run.gather([("bad", "sleep 0.5; exit 7"), ("long", "echo p > p; sleep 5432")])
        report = task_run.report

    assert statuses(good) == ["succeeded", "succeeded"]
    assert failed.value.result.exit_code == 7
    assert report.steps[-1].worker_results[0].status is Status.CANCELLED
    assert sleepers("5432") == []


async def test_a_quorum_is_met_or_missed(repo: Path) -> None:
    async with coordinator(repo) as task_run:
        met = await task_run.quorum(["echo a > a", "exit 1", "echo c > c"], 2)
        with pytest.raises(QuorumMissed):
            await task_run.quorum(["exit 1", "exit 1", "echo c > c"], 2)
        with pytest.raises(BadInput, match="quorum of 4"):
            await task_run.quorum(["true"], 4)

    assert statuses(met) == ["succeeded", "succeeded"]


async def test_stages_hand_their_results_on_and_a_command_verifies(repo: Path) -> None:
    def verify(results: list[WorkerResult]) -> list[Task]:
        return [Task.command("test -f a && test -f d0/f0.txt", base=results[0])]

    async with coordinator(repo) as task_run:
        done = await task_run.stages(["echo a > a; echo said-a"], ['grep -q "^> said-a" "$SHOAL_PROMPT_FILE"'])
        checked = await task_run.stages(["echo a > a"], verify)
        stopped = await task_run.stages(["exit 1"], ["echo never > n"])
        command = await task_run.run_command("exit 42")

    assert [statuses(stage) for stage in done] == [["succeeded"], ["no_changes"]]
    assert [statuses(stage) for stage in checked] == [["succeeded"], ["no_changes"]]
    assert [statuses(stage) for stage in stopped] == [["failed"]]
    assert command.exit_code == 42


async def test_a_stream_reads_an_endless_source_only_as_agents_become_free(repo: Path) -> None:
    pulled = 0

    async def endless() -> AsyncIterator[str]:
        nonlocal pulled
        while True:
            pulled += 1
            yield f"echo {pulled} > n"

    seen = []
    async with coordinator(repo, max_concurrent=2) as task_run:
        results = task_run.stream(endless(), ordered=True)
        async for result in results:
            seen.append(shown(repo, result, "n"))
            if len(seen) == 4:
                break
        await results.aclose()

    assert seen == ["1", "2", "3", "4"]
    assert pulled < 9
    assert_nothing_left(repo)


async def test_a_pool_keeps_sessions_warm_and_their_work(repo: Path) -> None:
    async with coordinator(repo, max_concurrent=2) as task_run:
        async with task_run.pool(1) as pool:
            for number in range(3):
                async with pool.agent() as session:
                    await session.run(f"echo {number} >> log")
        branch = session.branch

    assert git(repo, "show", f"{branch}:log").split() == ["0", "1", "2"]
    assert_nothing_left(repo)


async def test_work_is_balanced_over_named_agents(repo: Path) -> None:
    agents = {name: {"adapter": "command", "command": ["sh", "-c", f"echo {name}; sleep 0.3"]} for name in ("a", "b")}

    results = await coordinator(repo).balance(["x"] * 6, agents, weights={"a": 2, "b": 1})

    did = [result.output.strip() for result in results]
    assert len(did) == 6
    assert did.count("a") > did.count("b") > 0, "who ends first gets the next one, so the share is not exact"


async def test_a_failed_attempt_is_tried_again_in_a_fresh_workspace_and_kept(repo: Path, tmp_path: Path) -> None:
    script = 'echo "$SHOAL_BRANCH" > b; ls -A | grep -c mark; touch mark; exit 1'

    async with coordinator(repo) as task_run:
        (result,) = await task_run.run_agents(
            [Task(script, name="again", retry={"max_attempts": 3, "wait_seconds": 0})]
        )

    branches = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent/again").split()
    assert (result.status, result.attempts, result.output.strip()) == (Status.FAILED, 3, "0")
    assert len(branches) == 3
    assert_nothing_left(repo)


async def test_after_the_deadline_what_is_done_is_done_and_the_rest_is_kept(repo: Path) -> None:
    async with coordinator(repo) as task_run:
        results = await task_run.run_agents(["echo a > a", "echo b > b; sleep 6543"], deadline=3)

    assert statuses(results) == ["succeeded", "cancelled"]
    assert shown(repo, results[1], "b") == "b"
    assert_nothing_left(repo)


async def test_cancelled_from_outside_it_keeps_the_work_and_leaves_nothing(repo: Path) -> None:
    async def work() -> None:
        async with coordinator(repo) as task_run:
            started = asyncio.create_task(task_run.run_agents(["echo b > b; sleep 7654"]))
            while not task_run.active_sessions:
                await asyncio.sleep(0.02)
            while not sleepers("7654"):
                await asyncio.sleep(0.02)
            started.cancel()
            with pytest.raises(asyncio.CancelledError):
                await started

    await asyncio.wait_for(work(), 30)

    branches = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").split()
    assert [git(repo, "show", f"{branch}:b") for branch in branches] == ["b"]
    assert sleepers("7654") == []
    assert_nothing_left(repo)


async def test_context_files_and_inputs_reach_the_agent(repo: Path) -> None:
    agent = {"adapter": "command", "command": ["sh", "-c", 'cat > told; cat "$SHOAL_INPUTS_DIR"/1-input.txt > input']}
    task = Task("Mend it", agent=agent, context="It broke on Monday.", files=["README.md"], inputs=["a report\n# loud"])

    (result,) = await coordinator(repo).run_agents([task])

    told = shown(repo, result, "told")
    assert told.startswith("Mend it\n\n## Context\n\nIt broke on Monday.\n\n## Files to look at first\n\n- README.md\n")
    assert "> # loud" in told
    assert shown(repo, result, "input") == "a report\n# loud"


async def test_secrets_of_a_task_are_masked(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_TOKEN", "s3cret-value-of-the-host")
    task = Task("echo $TOKEN", env={"TOKEN": {"from": "HOST_TOKEN"}})

    (result,) = await coordinator(repo).run_agents([task])

    assert "s3cret" not in result.output
    assert result.output.strip()


async def test_one_task_that_is_no_list_is_refused(repo: Path) -> None:
    with pytest.raises(BadInput, match="brackets"):
        await coordinator(repo).run_agents("true")


async def test_a_retry_that_waits_holds_no_slot(repo: Path) -> None:
    slow = Task("exit 1", name="slow", retry={"max_attempts": 2, "wait_seconds": 60, "longest_seconds": 60})
    began = time.monotonic()

    async with coordinator(repo, max_concurrent=1) as task_run:
        winner = await task_run.race([slow, Task("echo w > w", name="quick")])

    assert winner.status is Status.SUCCEEDED
    assert time.monotonic() - began < 50


async def test_a_run_that_is_left_by_an_error_did_not_succeed(repo: Path) -> None:
    with pytest.raises(UnknownName):
        async with coordinator(repo) as task_run:
            await task_run.run_agents([Task("true", name="a", deps=["nobody"])])

    (run,) = fold(read_events(StatePaths.of(repo))).runs.values()
    assert run.status is Status.FAILED


async def test_a_command_on_work_without_changes_starts_where_that_stood(repo: Path) -> None:
    async with coordinator(repo) as task_run:
        first = await task_run.run_agents([Task("echo x > made", name="a")])
        idle = await task_run.run_agents([Task("true", name="b", base=first[0])])
        seen = await task_run.run_command("cat made", base=idle[0])

    assert idle[0].status is Status.NO_CHANGES
    assert seen.output.strip() == "x"


async def test_a_coordinator_forgets_workers_that_ended_long_ago(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.steps.attempts.MOST_RETIRED", 2)
    async with coordinator(repo) as open_coordinator:
        for _ in range(3):
            assert statuses(await open_coordinator.run_agents([Task("true"), Task("true")])) == ["no_changes"] * 2

        gc.collect()
        kept = [known for known in gc.get_objects() if isinstance(known, WorkerSpec)]

    assert len(kept) == 2
