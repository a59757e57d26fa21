"""Concurrent agents without interference: the printed code of its document, as near to the letter as can be."""

import asyncio
import re
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier

import pytest

from shoal import Agent, AgentCoordinator, IsolatedAgentSession, ResourceLimits, ScriptedModel, sandboxed_tools
from shoal.agent import Call
from shoal.agent.scripted import Step
from shoal.errors import BadInput
from shoal.model.limits import BadLimit
from shoal.model.merge import DeliveryStatus
from shoal.store.paths import StatePaths
from shoal.store.reader import read_samples
from tests.conftest import git

OBEY = {"adapter": "command", "command": ["sh", "-c", 'eval "$(head -n 1)"']}


def held(repo: Path, name: str, content: str) -> IsolatedAgentSession:
    """A session that wrote a file, and is over."""
    with IsolatedAgentSession(name, repo) as session:
        (session.workspace / "README.md").write_text(content)
    return session


BUSY = "python3 -c 'import time; held = bytearray(80 << 20); any(iter(lambda: time.process_time() > 1, True))'"


def test_what_a_session_used_is_in_its_result(repo: Path) -> None:
    """The highest memory of all its commands, and the CPU of all of them together."""
    with IsolatedAgentSession("agent-1", repo) as session:
        session.run(BUSY)
        session.run(BUSY)
    (agent,) = AgentCoordinator(repo, agent=OBEY).run_agents_sync([BUSY])

    assert session.result is not None
    assert session.result.resources["cpu_seconds"] > 1.5
    assert session.result.resources["memory_peak_mb"] > 75
    assert agent.resources.keys() == {"memory_peak_mb", "memory_average_mb", "cpu_seconds", "disk_mb"}
    samples = [taken.sample for taken in read_samples(StatePaths.of(repo), agent.session)]
    assert len(samples) >= 2
    assert 40 < agent.resources["memory_average_mb"] <= agent.resources["memory_peak_mb"]
    assert samples[-1].cpu_seconds == agent.resources["cpu_seconds"]


def test_what_a_session_has_is_known_when_it_is_made(repo: Path) -> None:
    session = IsolatedAgentSession("agent-1", repo)
    foreseen = (session.workspace, session.branch, session.db_path, session.sandbox.name, session.limits)

    assert session.session_id == "agent-1"
    assert session.db_path.name == "agent_agent-1.db"
    assert session.permission_manager.workspace == session.workspace
    assert session.result is None
    assert not session.workspace.exists()
    with session:
        assert (session.workspace, session.branch, session.db_path, session.sandbox.name, session.limits) == foreseen
        assert (session.workspace / "README.md").exists()
        session.run("echo more > more.txt")
    assert session.result is not None
    assert session.result.branch == foreseen[1]
    assert not session.workspace.exists()


def test_a_branch_is_named_for_its_task(repo: Path) -> None:
    session = IsolatedAgentSession("task-1", repo)
    (result,) = AgentCoordinator(repo, agent=OBEY, sandbox="none").run_agents_sync([("task-2", "echo w > w")])

    assert re.fullmatch(r"agent/task-1/[0-9a-f]{6,}", session.branch)
    assert re.fullmatch(r"agent/task-2/[0-9a-f]{6,}", str(result.branch))
    assert git(repo, "show", f"{result.branch}:w") == "w"


async def test_the_same_is_known_inside_of_a_loop(repo: Path) -> None:
    session = IsolatedAgentSession("agent-1", repo)
    workspace = session.workspace

    async with session as opened:
        assert opened.workspace == workspace


def test_what_came_of_a_session_says_all_that_a_result_says(repo: Path, tmp_path: Path) -> None:
    session = held(repo, "agent-1", "one\n")

    result = session.result
    assert result is not None
    assert (result.base, result.files_changed, result.limit) == (git(repo, "rev-parse", "HEAD"), 1, None)
    assert result.duration_seconds > 0
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a.txt").write_text("a\n")
    with IsolatedAgentSession("plain", folder, isolation_strategy="directory") as plain:
        (plain.workspace / "a.txt").write_text("b\n")
    assert plain.result is not None
    assert "+b" in Path(plain.result.artifacts["patch"]).read_text()


def test_the_database_is_kept_beside_the_results_when_that_is_asked(repo: Path) -> None:
    make = "import os, sqlite3; c = sqlite3.connect(os.environ['DATABASE_URL'][10:]); c.execute('create table t (x)')"
    with IsolatedAgentSession("agent-1", repo, keep_database=True) as session:
        done = session.run(["python3", "-c", make])
    with IsolatedAgentSession("agent-2", repo, keep_database=True) as silent:
        pass
    task = {"prompt": "go", "agent": {"adapter": "command", "command": ["python3", "-c", make]}}
    (worker,) = AgentCoordinator(repo=repo, keep_database=True).sync.run_agents([task])

    assert done.exit_code == 0, done.error
    assert session.result is not None
    for result in (session.result, worker):
        with sqlite3.connect(result.artifacts["database"]) as kept:
            assert kept.execute("select name from sqlite_master").fetchall() == [("t",)]
    assert Path(session.result.artifacts["database"]).name == session.db_path.name
    assert silent.result is not None
    assert silent.result.artifacts == {}, "it made none"


def use_tool(prompt: str, step: int) -> Step:
    return Call("write", {"path": "out.txt", "content": prompt}) if step == 0 else "done"


class InnerHarness:
    """The seed's: an agent whose tools work in a session that plain code holds open."""

    def __init__(self, session: IsolatedAgentSession) -> None:
        self._agent = Agent(ScriptedModel(use_tool), tools=sandboxed_tools(session))

    def run(self, task: str) -> str:
        return asyncio.run(self._agent.prompt(task)).text


def run_agent(session_id: str, repo: Path, task: str) -> None:
    with IsolatedAgentSession(session_id, repo) as session:
        agent = InnerHarness(session)
        assert agent.run(task) == "done"


def test_the_harness_runs_in_processes(repo: Path) -> None:
    tasks = ["first", "second"]
    processes = []
    for i, task in enumerate(tasks):
        p = get_context("spawn").Process(target=run_agent, args=(f"agent-{i}", repo, task))
        processes.append(p)
        p.start()
    for p in processes:
        p.join()

    assert [p.exitcode for p in processes] == [0, 0]
    branches = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").split()
    assert sorted(git(repo, "show", f"{branch}:out.txt") for branch in branches) == tasks


PROGRAM = """
import multiprocessing, sys
from shoal import IsolatedAgentSession


def run_agent(session_id, task, all_open):
    with IsolatedAgentSession(session_id, ".") as session:
        all_open.wait(60)
        sys.exit(session.run(task).exit_code)


if __name__ == "__main__":
    tasks = ["echo first > out.txt", "echo second > out.txt"]
    context = multiprocessing.get_context(sys.argv[1])
    all_open = context.Barrier(len(tasks))
    processes = []
    for i, task in enumerate(tasks):
        p = context.Process(target=run_agent, args=(f"agent-{i}", task, all_open))
        processes.append(p)
        p.start()
    for p in processes:
        p.join()
    print([p.exitcode for p in processes])
"""
"""The seed's program; each process goes on when the sessions of all are open."""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_sessions_run_in_processes_that_are_not_spawned(repo: Path, tmp_path: Path, method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = subprocess.run(
        [sys.executable, program, method], cwd=repo, capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, done.stdout) == (0, "[0, 0]\n"), done.stderr
    branches = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").split()
    assert sorted(git(repo, "show", f"{branch}:out.txt") for branch in branches) == ["first", "second"]


def test_sessions_run_in_threads(repo: Path) -> None:
    """Each thread goes on when the sessions of all are open."""
    all_open = Barrier(3)

    def run_agent(number: int) -> IsolatedAgentSession:
        with IsolatedAgentSession(f"agent-{number}", repo) as session:
            all_open.wait(60)
            session.run(f"echo {number} > same.txt")
        return session

    with ThreadPoolExecutor(3) as pool:
        sessions = list(pool.map(run_agent, range(3)))

    assert [git(repo, "show", f"{session.branch}:same.txt") for session in sessions] == ["0", "1", "2"]
    assert len({session.workspace for session in sessions}) == 3
    assert git(repo, "worktree", "list").count("\n") == 0


def test_a_tool_that_is_cancelled_has_ended_before_the_session_does(repo: Path) -> None:
    async def cut_short(session: IsolatedAgentSession) -> None:
        workspace = session.as_workspace()
        running = asyncio.create_task(workspace.run("echo begun > begun.txt; sleep 600"))
        while not (session.workspace / "begun.txt").exists():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await workspace.run("echo next")).output == "next\n"

    with IsolatedAgentSession("agent-1", repo) as session:
        asyncio.run(cut_short(session))

    assert session.result is not None
    assert session.result.files_changed == 1
    with pytest.raises(BadInput, match="not open"):
        session.run("true")


def test_limits_have_the_printed_names_and_defaults() -> None:
    usual, own = ResourceLimits(), ResourceLimits(max_memory=512, max_cpu_percent=25, max_execution_time=60)

    assert (usual.max_memory, usual.max_cpu_percent, usual.max_execution_time, usual.max_disk_usage) == (
        1024,
        50,
        3600,
        5120,
    )
    assert (own.memory_mb, own.cpu_percent, own.time_seconds, own.disk_mb) == (512, 25, 60, 5120)
    with pytest.raises(BadLimit, match="did you mean `max_memory`"):
        ResourceLimits(max_memroy=1)  # type: ignore[call-arg]
    with pytest.raises(BadLimit, match="given twice"):
        ResourceLimits(max_memory=100, memory_mb=200)


def test_merging_session_by_session_finds_conflicts_between_them(repo: Path) -> None:
    sessions = [held(repo, f"agent-{i}", text) for i, text in enumerate(["one\n", "two\n"])]
    sessions.append(IsolatedAgentSession("agent-2", repo))
    with sessions[-1] as last:
        (last.workspace / "other.txt").write_text("three\n")
    before = git(repo, "rev-parse", "main")
    git_manager = AgentCoordinator(repo=repo).sync
    said = []

    for session in sessions:
        result = git_manager.merge_agent_work(session.session_id, strategy="review")
        if result["status"] == "conflicts":
            said += git_manager.resolve_conflicts(result["conflicts"])  # type: ignore[arg-type]
        else:
            said.append(f"✓ Agent {session.session_id} merged")

    assert said[0] == "✓ Agent agent-0 merged"
    assert said[1].startswith("both changed the same lines of README.md")
    assert said[2] == "✓ Agent agent-2 merged"
    assert len(git(repo, "branch", "--list", "shoal/*").splitlines()) == 1
    assert git(repo, "rev-parse", "main") == before, "a person looks first"

    delivered = git_manager.deliver("main")
    assert delivered.delivery is not None
    assert delivered.delivery.status is DeliveryStatus.DELIVERED
    assert (repo / "README.md").read_text() == "one\n"
    assert (repo / "other.txt").read_text() == "three\n"


def test_to_merge_nothing_merges_nothing(repo: Path) -> None:
    held(repo, "somebody-else", "theirs\n")
    manager = AgentCoordinator(repo=repo).sync

    assert manager.merge_agent_results([]) == []
    with pytest.raises(BadInput, match="nothing to merge"):
        manager.merge([])
    assert git(repo, "branch", "--list", "shoal/*") == ""


def test_a_coordinator_for_plain_code(repo: Path) -> None:
    coordinator = AgentCoordinator(5)
    assert (coordinator.max_concurrent, coordinator.repo, coordinator.active_sessions) == (5, Path("."), {})
    assert AgentCoordinator(2, repo).repo == repo
    assert AgentCoordinator(repo, 2).max_concurrent == 2
    with pytest.raises(BadInput, match="two numbers"):
        AgentCoordinator(2, 3)

    pipeline = [
        ("agent-1", "echo api > api.txt"),
        ("agent-2", "cat api.txt > impl.txt", ["agent-1"]),
        ("agent-3", "cat impl.txt > tests.txt", ["agent-2"]),
    ]
    with AgentCoordinator(2, repo, agent=OBEY) as task_run:
        results = task_run.run_agents(pipeline)
        merged = task_run.merge_agent_results(results)
        assert task_run.report.steps

    assert [result.status.value for result in results] == ["succeeded"] * 3
    assert [one["status"] for one in merged] == ["merged"] * 3


async def test_plain_calls_are_refused_where_a_loop_runs(repo: Path) -> None:
    with pytest.raises(BadInput, match="async with"):
        AgentCoordinator(repo=repo).sync.run_agents([])
    with pytest.raises(BadInput, match="async with"), AgentCoordinator(repo=repo):
        pass
