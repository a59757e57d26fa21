"""A run that is killed leaves no server process, and the next start removes everything else of it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.databases.test_shared import PYTHON, assert_no_server, servers_of
from tests.postgres import Server

SHOAL = Path(sys.executable).with_name("shoal")
WAIT = (
    "import psycopg, time; psycopg.connect(autocommit=True).execute('CREATE TABLE t ()');"
    " print('rea' + 'dy', flush=True); time.sleep(100)"
)


def write_plan(repo: Path, script: str, database: str = "") -> Path:
    agent = {"adapter": "command", "command": [PYTHON, "-c", script]}
    runtime = {"database_strategy": "shared", **({"database": {"from": "TEST_SERVER"}} if database else {})}
    plan = {"runtime": runtime, "agents": {"a": agent}, "steps": [{"name": "s", "agent": "a", "prompt": "go"}]}
    (repo.parent / "plan.yaml").write_text(json.dumps(plan))
    return repo.parent / "plan.yaml"


def kill_working(repo: Path, url: str) -> None:
    """Kill a run whose agent has made a table."""
    plan = write_plan(repo, WAIT, url)
    environ = {**os.environ, "TEST_SERVER": url}
    with subprocess.Popen(
        [SHOAL, "run", plan, "--events"], cwd=repo, env=environ, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "ready" in line:
                break
        run.kill()


def run_again(repo: Path, url: str = "") -> None:
    plan = write_plan(repo, "pass", url)
    environ = {**os.environ, "TEST_SERVER": url}
    subprocess.run([SHOAL, "run", plan], cwd=repo, env=environ, check=True, capture_output=True)


def test_a_server_of_our_own_ends_with_the_run_that_is_killed(repo: Path) -> None:
    kill_working(repo, "")

    end = time.monotonic() + 10
    while running := servers_of(repo):
        assert time.monotonic() < end, running
        time.sleep(0.02)
    (note,) = (repo / ".shoal/databases").glob("*.json")
    sockets = Path(json.loads(note.read_text())["sockets"])
    assert sockets.is_dir()

    run_again(repo)

    assert_no_server(repo)
    assert not sockets.exists()


def test_a_users_server_is_cleared_by_the_next_run_that_names_it(repo: Path, server: Server) -> None:
    before = server.shape()
    kill_working(repo, server.url)
    assert len(server.shape()) == len(before) + 3  # a database, its group and the session's role

    run_again(repo)
    assert len(server.shape()) == len(before) + 3
    run_again(repo, server.url)

    assert server.shape() == before
    assert_no_server(repo)
