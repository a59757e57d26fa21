"""`IsolatedAgentSession`, as seed 002 asks for it."""

import sqlite3
from multiprocessing import get_context
from pathlib import Path

import pytest

from shoal import AccessDenied, IsolatedAgentSession
from shoal.errors import BadInput
from shoal.model.status import Status
from tests.acting import assert_nothing_left, fingerprint
from tests.conftest import git


def test_a_program_of_the_hosts_and_the_box_share_the_workspace(repo: Path) -> None:
    before = fingerprint(repo)

    with IsolatedAgentSession("agent-1", base_workspace=repo) as session:
        (session.workspace / "host.txt").write_text("host\n")
        done = session.run("cat host.txt; echo box > box.txt; git status --short; id -u")
        assert (session.workspace / "box.txt").read_text() == "box\n"
        assert str(session.workspace) in git(repo, "worktree", "list")
        assert session.db_path.name == "agent_agent-1.db"
        assert session.branch.startswith("agent/agent-1/")
        assert session.sandbox.name == "bubblewrap"

    assert done.exit_code == 0
    assert "host\n" in done.output
    assert session.result is not None
    assert session.result.status is Status.SUCCEEDED
    assert git(repo, "show", f"{session.branch}:host.txt") == "host"
    assert git(repo, "show", f"{session.branch}:box.txt") == "box"
    assert not session.workspace.exists()
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


async def test_the_same_as_async_with(repo: Path) -> None:
    async with IsolatedAgentSession("agent-2", repo) as session:
        done = await session.run(["sh", "-c", "echo a > a; exit 3"])

    assert done.exit_code == 3
    assert git(repo, "show", f"{session.branch}:a") == "a"


def test_work_is_kept_when_the_program_fails(repo: Path) -> None:
    with pytest.raises(ZeroDivisionError), IsolatedAgentSession("agent-3", repo) as session:
        (session.workspace / "kept").write_text("kept\n")
        raise ZeroDivisionError

    assert git(repo, "show", f"{session.branch}:kept") == "kept"
    assert_nothing_left(repo)


def test_a_session_without_changes_leaves_no_branch(repo: Path) -> None:
    with IsolatedAgentSession("agent-4", repo) as session:
        pass

    assert session.result is not None
    assert session.result.status is Status.NO_CHANGES
    assert git(repo, "branch", "--list", "agent/*") == ""


def test_commits_of_the_host_and_of_the_box_both_count(repo: Path) -> None:
    with IsolatedAgentSession("agent-5", repo) as session:
        (session.workspace / "one").write_text("one\n")
        git(session.workspace, "add", "one")
        git(session.workspace, "commit", "-qm", "by the host")
        session.run("echo two > two; git add two; git commit -qm 'by the box'")

    subjects = git(repo, "log", "--format=%s", f"main..{session.branch}").splitlines()
    assert {"by the host", "by the box"} <= set(subjects)
    assert git(repo, "show", f"{session.branch}:one") == "one"
    assert git(repo, "show", f"{session.branch}:two") == "two"


def test_the_database_is_the_agents_own(repo: Path) -> None:
    script = "python3 -c \"import os, sqlite3; sqlite3.connect(os.environ['DATABASE_URL'][10:]).execute('create table t(x)')\""
    with IsolatedAgentSession("agent-6", repo) as session:
        done = session.run(script)
        assert done.exit_code == 0, done.error
        assert sqlite3.connect(session.db_path).execute("select name from sqlite_master").fetchall() == [("t",)]
    assert not session.db_path.exists()


def test_a_command_that_takes_too_long_is_ended(repo: Path) -> None:
    with IsolatedAgentSession("agent-7", repo) as session:
        done = session.run("sleep 1000", timeout=0.3)

    assert done.timed_out


@pytest.mark.parametrize("name", ["", "../x", "A", "a b", "-x", "x" * 60])
def test_a_bad_name_is_refused(repo: Path, name: str) -> None:
    with pytest.raises(BadInput, match="session id"):
        IsolatedAgentSession(name, repo)


def test_limits_are_the_seeds_and_bind(repo: Path) -> None:
    hog = "python3 -c 'x = bytearray(300 * 2**20); import time; time.sleep(9)'"
    with IsolatedAgentSession("agent-8", repo, limits={"max_memory": 64, "max_execution_time": 20}) as session:
        done = session.run(hog)
        assert session.limits.memory_mb == 64

    assert done.limit == "memory"
    assert done.exit_code != 0


def test_a_limit_without_meaning_is_refused(repo: Path) -> None:
    for wrong in ({"memory_mb": 0}, {"memory": 5}, {"pids": 1.5}, {"cpu_percent": -1}):
        with pytest.raises(BadInput, match="limit"):
            IsolatedAgentSession("agent-8", repo, limits=wrong)


def test_paths_outside_are_denied(repo: Path) -> None:
    with IsolatedAgentSession("agent-9", repo) as session:
        session.run("ln -s /etc/passwd link; mkdir in")
        allowed = session.permission_manager
        assert allowed.validate_path("in") == session.workspace / "in"
        for path in ("/etc/passwd", "../x", "link", ".git"):
            with pytest.raises(AccessDenied, match="Access denied: "):
                allowed.validate_path(path)


def seed_agent(repo: Path, number: int) -> None:
    """What each process of seed 002's example does."""
    with IsolatedAgentSession(f"agent-{number}", repo) as session:
        (session.workspace / "same.txt").write_text(f"{number}\n")


@pytest.mark.deep
def test_seed_002s_processes_run_at_once_without_interference(repo: Path) -> None:
    processes = [get_context("spawn").Process(target=seed_agent, args=(repo, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0] * 4
    branches = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").splitlines()
    assert sorted(git(repo, "show", f"{branch}:same.txt") for branch in branches) == ["0", "1", "2", "3"]
    assert_nothing_left(repo)


def test_secrets_come_from_the_given_environment(repo: Path) -> None:
    IsolatedAgentSession("fix", repo, secrets=["GIVEN_KEY"], environ={"GIVEN_KEY": "value", "PATH": "/usr/bin"})

    with pytest.raises(BadInput, match="GIVEN_KEY"):
        IsolatedAgentSession("fix", repo, secrets=["GIVEN_KEY"])
