"""The coordinator under stress: cancelled at every moment, killed, misused, and with several of them at once."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import AgentCoordinator, Task, patterns
from shoal.adapters.command import Command
from shoal.engine import admission
from shoal.engine.admission import MIB, Admission, Free
from shoal.engine.chart import charted
from shoal.engine.dispatch import Dispatch
from shoal.engine.job import Job
from shoal.engine.prepare import Ask, prepared
from shoal.errors import BadInput, Broken
from shoal.model.agent import AgentSpec
from shoal.model.assignment import Assignment
from shoal.model.events import Recorded, Waiting
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.model.task import TaskLike
from shoal.patterns import Limiter
from tests.acting import assert_nothing_left, fingerprint, shown
from tests.conftest import git, make_repo

SHELL = {"adapter": "command", "command": ["/bin/sh", "-c", 'eval "$(head -n 1)"']}
"""An agent that does what the first line of its prompt says."""

LONG = 60.0


def coordinator(repo: Path, max_concurrent: int = 5, **more: object) -> AgentCoordinator:
    return AgentCoordinator(repo, max_concurrent, agent=SHELL, grace=0.5, **more)  # type: ignore[arg-type]


def statuses(results: list[WorkerResult]) -> list[str]:
    return [result.status.value for result in results]


def works(repo: Path) -> list[str]:
    """What the file `w` holds on each branch of an agent."""
    branches = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").split()
    return sorted(git(repo, "show", f"{branch}:w") for branch in branches)


async def brought_in(repo: Path) -> None:
    """Start a Shoal once more, which brings in what an earlier one left."""
    async with coordinator(repo):
        pass


# Cancelling


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.08, 0.2, 0.5, 1.0, 1.6])
@pytest.mark.parametrize("cancels", [1, 2])
async def test_cancelled_at_any_moment_nothing_is_lost_and_nothing_left(
    repo: Path, moment: float, cancels: int
) -> None:
    """Some wait for a slot, some open, run, seal or import; twice cancelled, the next start brings in what was left."""
    before = fingerprint(repo)
    tasks = [f"echo {number} > w; sleep 0.{number}; echo done" for number in range(6)]

    async def work() -> list[WorkerResult]:
        async with coordinator(repo, max_concurrent=3) as crew:
            return await crew.run_agents(tasks)

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

    async with coordinator(repo, max_concurrent=3) as crew:

        async def streamed() -> list[WorkerResult]:
            async with contextlib.aclosing(crew.stream(["echo s > w; sleep 0.2"] * 4)) as results:
                return [result async for result in results]

        calls = [
            lambda: crew.run_agents(["echo a > w; sleep 0.3", ("b", "sleep 0.3", ["task-1"])]),
            lambda: crew.race(["sleep 0.4", "sleep 0.5", "exit 1"]),
            lambda: crew.settled(["sleep 0.3"] * 3),
            lambda: crew.run_command("sleep 0.3"),
            streamed,
        ]
        tasks = [asyncio.create_task(dice.choice(calls)()) for _ in range(12)]
        for task in tasks:
            await asyncio.sleep(dice.random() / 5)
            if dice.random() < 0.8:
                task.cancel()
        ended, hung = await asyncio.wait(tasks, timeout=LONG)
        limiter = crew._crew.dispatch.limiter if crew._crew else None

    assert hung == set()
    assert limiter is not None
    assert (limiter.active, limiter.waiting) == (0, 0)
    assert all(task.cancelled() or task.exception() is None or isinstance(task.exception(), BadInput) for task in ended)
    assert_nothing_left(repo)


async def test_retries_a_race_and_a_deadline_together_end_in_time(repo: Path) -> None:
    stubborn = Task("exit 1", retry={"max_attempts": 50, "wait_seconds": 0.1})

    async with coordinator(repo, max_concurrent=2) as crew:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await crew.race([stubborn, replace(stubborn, prompt="sleep 30; exit 1")])
        results = await crew.run_agents([stubborn, "sleep 0.1; echo w > w"], deadline=3)
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


# Misuse


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

    async with coordinator(repo, max_concurrent=2) as crew:
        with pytest.raises(BadInput, match="nobody"):
            async for _ in crew.stream(tasks, ordered=True):
                pass
        after = await crew.run_command("true")

    assert after.status.is_good
    assert_nothing_left(repo)


async def test_after_its_end_a_coordinator_opens_a_run_for_each_call(repo: Path) -> None:
    crew = coordinator(repo)
    async with crew:
        with pytest.raises(BadInput, match="open already"):
            await crew.__aenter__()
        first = await crew.run_command("true")

    second = await crew.run_command("true")

    assert first.status.is_good
    assert second.status.is_good
    assert crew.active_sessions == {}
    with pytest.raises(BadInput, match="not open"):
        _ = crew.report
    assert_nothing_left(repo)


def test_a_plain_script_may_use_one_coordinator_again_and_again(repo: Path) -> None:
    crew = coordinator(repo)

    done = [crew.run_agents_sync(["true", "true"]) for _ in range(2)]

    assert [statuses(results) for results in done] == [["no_changes"] * 2] * 2


async def test_calls_at_one_time_share_a_run_and_its_limit(repo: Path) -> None:
    """The first to end must not take the run from under the others."""
    crew = coordinator(repo, max_concurrent=2)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(crew.active_sessions))
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    done = [asyncio.create_task(crew.run_agents([f"sleep 0.{n}; echo {n} > w"] * 2)) for n in (1, 4, 6)]
    await asyncio.wait(done, timeout=LONG)
    watching.cancel()

    assert [statuses(task.result()) for task in done] == [["succeeded"] * 2] * 3
    assert 1 <= most <= 2
    assert len(list((repo / ".shoal/workspaces").iterdir())) == 0
    assert_nothing_left(repo)


# Several at once


async def test_two_coordinators_in_one_process_do_not_disturb_each_other(repo: Path) -> None:
    async with coordinator(repo, 2) as one, coordinator(repo, 2) as other, asyncio.TaskGroup() as group:
        done = [group.create_task(crew.run_agents(["echo w > w; sleep 0.2"] * 4)) for crew in (one, other)]

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

    async def watch(crew: AgentCoordinator) -> None:
        nonlocal most
        while True:
            most = max(most, len(crew.active_sessions))
            await asyncio.sleep(0.005)

    async with coordinator(repo, max_concurrent=2) as crew, asyncio.timeout(LONG * 2):
        watching = asyncio.create_task(watch(crew))

        async def raced(number: int) -> WorkerResult:
            calls = [lambda: crew.run_command("sleep 0.1"), lambda: crew.run_command("exit 1")]
            winner = await patterns.race(calls, accept=lambda result: result.status.is_good)
            (checked,) = await crew.settled([Task.command("sleep 0.05", base=winner)])
            return checked

        seen = []
        async for result in crew.stream(["sleep 0.1"] * 4):
            seen.append(result)
            outcomes = await patterns.map(raced, range(3))
            seen += [outcome.value for outcome in outcomes if isinstance(outcome, patterns.Ok)]
        watching.cancel()

    assert len(seen) == 16
    assert all(result.status.is_good for result in seen)
    assert 1 <= most <= 2
    assert_nothing_left(repo)


# Dependencies


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
    async with coordinator(repo, max_concurrent=1, listen=gc) as crew:
        results = await crew.run_agents(tasks)
        gone = replace(results[0], commit="1" * 40)
        with pytest.raises(Broken, match="1111111"):
            await crew.run_command("true", base=gone)
        after = await crew.run_command("test -f w", base=results[3])

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
        async with prepared(Ask(folder=shared_repo, environ=os.environ)) as site:
            dispatch = Dispatch(site, Limiter(5), Admission(site.paths.root))
            jobs = {name: job(name, needs[name]) for name in needs}

            async def work(own: Job) -> None:
                await asyncio.sleep(dice.random() / 1000)
                order.append(own.step)
                status = Status.FAILED if own.step in bad else Status.NO_CHANGES
                dispatch.note(own, own.unstarted(status))

            shuffled = dice.sample(list(jobs.values()), len(jobs))
            await charted(dispatch, shuffled, work)
            return {name: dispatch.result(jobs[name]) for name in needs}

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


def job(name: str, needs: tuple[str, ...]) -> Job:
    agent = AgentSpec(name="x", adapter="command", command=("true",))
    task = Assignment(name=name, prompt="x", agent=agent)
    return Job(step=name, index=0, count=1, task=task, adapter=Command(), needs=needs)


@pytest.fixture(scope="module")
def shared_repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repo(tmp_path_factory.mktemp("shared") / "repo")


# Admission


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> list[Free]:
    """A machine whose free memory the test decides."""
    now = [Free(memory_bytes=100 * MIB, memory_total_bytes=16384 * MIB, tasks=200, most_tasks=32768)]
    monkeypatch.setattr(admission, "free", lambda: now[0])
    return now


async def test_an_agent_waits_while_memory_is_short_says_so_once_and_goes_on(repo: Path, tight: list[Free]) -> None:
    said: list[str] = []
    short = asyncio.Event()

    def hear(recorded: Recorded) -> None:
        if isinstance(recorded.event, Waiting):
            said.append(recorded.event.reason)
            short.set()

    async with coordinator(repo, listen=hear) as crew:
        doing = asyncio.create_task(crew.run_agents(["true", "true"]))
        await asyncio.wait_for(short.wait(), LONG)
        tight[0] = replace(tight[0], memory_bytes=101 * MIB)
        await asyncio.sleep(1.2)
        active = dict(crew.active_sessions)
        tight[0] = replace(tight[0], memory_bytes=8192 * MIB)
        results = await asyncio.wait_for(doing, LONG)

    assert active == {}
    assert statuses(results) == ["no_changes", "no_changes"]
    assert said[0] == "100 MB of memory are free, and 512 MB must stay free"
    assert said[1:] == [""]


async def test_who_waits_for_memory_can_be_cancelled(repo: Path, tight: list[Free]) -> None:
    async with coordinator(repo) as crew:
        doing = asyncio.create_task(crew.run_agents(["true"] * 3))
        await asyncio.wait((doing,), timeout=0.5)
        doing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(doing, LONG)

    assert_nothing_left(repo)


SHORT = """
import sys
from dataclasses import replace
from pathlib import Path
from shoal.engine import admission

look, roomy = admission.free, Path(sys.argv.pop(1))
admission.free = lambda: look() if roomy.exists() else replace(look(), memory_bytes=2**20)

from shoal.cli.main import main

main()
"""


@pytest.mark.parametrize("ends", ["by room", "by Ctrl-C"])
def test_the_command_line_says_that_it_waits_and_goes_on_or_stops(repo: Path, tmp_path: Path, ends: str) -> None:
    roomy = tmp_path / "roomy"
    argv = [sys.executable, "-c", SHORT, str(roomy), "run", "--task", "x", "--command", "true", "--repo", str(repo)]
    said = []

    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            said.append(line)
            if "waiting  1 MB of memory are free" in line:
                roomy.touch() if ends == "by room" else child.send_signal(signal.SIGINT)

    assert child.returncode == (0 if ends == "by room" else 130), said
    assert any("waiting  1 MB of memory are free" in line for line in said)
    assert any("going on" in line for line in said) == (ends == "by room")
    assert_nothing_left(repo)


# Functions as agents


def raising(prompt: str) -> None:
    raise ValueError(f"no {prompt}")


def leaving(prompt: str) -> None:
    sys.exit(3)


def sleeping(prompt: str, workspace: Path) -> None:
    (workspace / "w").write_text("half")
    time.sleep(60)


def shouting(prompt: str) -> str:
    return "x" * 5_000_000 + f"\n{prompt}"


async def waiting(prompt: str) -> str:
    await asyncio.sleep(0.01)
    return f"awaited {prompt}"


class Unspeakable:
    """Cannot be said."""

    def __repr__(self) -> str:
        raise RuntimeError("never")

    def method(self, prompt: str) -> str:
        """Serve as no agent: another process could not find its object again."""
        return prompt


def unspeakable(prompt: str) -> Unspeakable:
    return Unspeakable()


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["process", "thread"])
async def test_whatever_a_function_does_is_its_own_result(repo: Path, mode: str) -> None:
    def task(function: object, **more: object) -> Task:
        return Task("end", agent=function, **more)  # type: ignore[arg-type]

    crew = AgentCoordinator(repo, 3, execution_mode=mode, isolation_strategy="worktree", grace=0.5)
    functions = [raising, leaving, shouting, waiting, unspeakable]
    results = await crew.run_agents([*map(task, functions), task(sleeping, timeout=10.0)])

    assert statuses(results) == ["failed", "failed", "no_changes", "no_changes", "failed", "timed_out"], results
    assert results[0].error == "it exited with 1: ValueError: no end"
    assert results[1].exit_code == (3 if mode == "process" else 1)
    assert results[2].output.rstrip().endswith("\nend")
    assert len(results[2].output) < 1_000_000
    assert results[3].output.strip() == "awaited end"
    assert shown(repo, results[5], "w") == "half"


async def test_what_another_process_could_not_find_is_no_agent(repo: Path) -> None:
    for function in (Unspeakable().method, print, lambda prompt: prompt):
        with pytest.raises(BadInput, match="def"):
            await AgentCoordinator(repo, agent=function).run_agents(["x"])


SCRIPT = """
import sys
from pathlib import Path
from shoal import AgentCoordinator
from helper import word
from pack.inner import said

def work(prompt, workspace):
    (workspace / "w").write_text(f"{word()} {prompt} {__name__ == '__main__'}")
    return "main " + word()

if __name__ == "__main__":
    crew = AgentCoordinator(sys.argv[1])
    for function in (work, said):
        (result,) = AgentCoordinator(sys.argv[1], agent=function).run_agents_sync(["hello"])
        print(result.status.value, result.output.strip(), result.error)
"""


@pytest.mark.parametrize("inside", [True, False])
def test_functions_of_a_script_and_of_a_package_find_what_they_import(repo: Path, tmp_path: Path, inside: bool) -> None:
    """Inside of the repository, what they import comes from the agent's own workspace."""
    folder = repo if inside else tmp_path / "elsewhere"
    (folder / "pack").mkdir(parents=True)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("def word(): return 'word'\n")
    (folder / "pack/__init__.py").write_text("")
    (folder / "pack/other.py").write_text("WORD = 'relative'\n")
    (folder / "pack/inner.py").write_text("from .other import WORD\ndef said(prompt): return f'{WORD} {prompt}'\n")
    if inside:
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", "program")

    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), str(repo)], capture_output=True, text=True, check=False
    )

    assert done.stdout.splitlines() == ["succeeded main word None", "no_changes relative hello None"], done.stderr


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


async def endless() -> AsyncIterator[str]:
    while True:
        yield "true"


async def test_an_endless_stream_keeps_nothing_of_what_it_gave(repo: Path) -> None:
    async with coordinator(repo, max_concurrent=4) as crew:
        count = 0
        async with contextlib.aclosing(crew.stream(endless())) as results:
            async for _ in results:
                count += 1
                if count == 20:
                    break
        assert crew._crew is not None
        kept = len(crew._crew.dispatch.results)

    assert kept <= 4
    assert_nothing_left(repo)


async def test_pins_of_a_run_that_was_cut_off_at_its_very_end_are_let_go(repo: Path) -> None:
    git(repo, "update-ref", "refs/shoal/base/coordinator-20200101-abcd+123456789abc", "HEAD")

    async with coordinator(repo) as crew:
        held = git(repo, "for-each-ref", "--format=%(refname)", "refs/shoal/base").splitlines()
        assert (await crew.run_command("true")).status.is_good

    assert len(held) == 1
    assert_nothing_left(repo)
