"""What an agent may use of a server, and what happens while that is gone."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import AgentCoordinator, Task
from shoal.errors import Unavailable
from shoal.model.agent import AgentSpec
from shoal.model.database import DatabaseSettings
from shoal.model.events import Recorded, SessionEnded, Waiting
from shoal.model.plan import Plan, Step
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.runs.request import RunRequest
from shoal.runs.run import run as run_plan
from tests.acting import shown
from tests.databases.test_shared import PYTHON, agent, assert_no_server
from tests.postgres import Server

COMMITTED = """
import psycopg, time
database = psycopg.connect(autocommit=True)
database.execute("CREATE TABLE t (word text)")
database.execute("ALTER TABLE t ALTER word SET STORAGE PLAIN")
while True: database.execute("INSERT INTO t SELECT repeat('x', 7000) FROM generate_series(1, 200)")
"""
UNCOMMITTED = COMMITTED.replace("autocommit=True", "")
LOCKED = COMMITTED.replace("while True:", "database.execute('BEGIN'); database.execute('LOCK TABLE t');\nwhile True:")


def run(repo: Path, script: str, **config: object) -> WorkerResult:
    settings = {"database_strategy": "shared", **config}
    (result,) = AgentCoordinator(repo, config=settings, agent=agent(script)).run_agents_sync([Task("go")])
    return result


@pytest.mark.parametrize("script", [COMMITTED, UNCOMMITTED, LOCKED], ids=["committed", "uncommitted", "locked"])
def test_an_agent_that_fills_the_server_is_over_its_disk_limit(repo: Path, server: Server, script: str) -> None:
    limits = {"disk_mb": 64, "time_seconds": 100}

    result = run(repo, script, database=server.url, resource_limits=limits)

    assert (result.status, result.limit) == ("over_limit", "disk"), result
    assert_no_server(repo)


def test_an_agent_has_so_many_connections_and_no_more(repo: Path, server: Server) -> None:
    script = """
import json, psycopg
held = []
try:
    while len(held) < 50: held.append(psycopg.connect())
except psycopg.OperationalError as error: why = str(error)
json.dump([len(held), why], open("found.json", "w"))
"""
    result = run(repo, script, database=server.url)

    count, why = json.loads(shown(repo, result, "found.json"))
    assert count == 10
    assert "too many connections for role" in why


@pytest.fixture
def fragile() -> Iterator[Server]:
    """Run a server that the test may stop."""
    running = Server()
    running.start()
    yield running
    running.close()


async def test_a_server_that_restarts_is_waited_for_before_the_next_agent(repo: Path, fragile: Server) -> None:
    waits: list[str] = []

    def listen(recorded: Recorded) -> None:
        match recorded.event:
            case SessionEnded(step="first"):
                fragile.stop(signal.SIGQUIT)
            case Waiting(reason=reason) if "database server" in reason:
                waits.append(reason)
                fragile.start()

    script = "import psycopg; psycopg.connect(autocommit=True).execute('CREATE TABLE t ()')"
    maker = AgentSpec(name="maker", adapter="command", command=(PYTHON, "-c", script))
    steps = [
        Step(name=name, needs=needs, task=ResolvedTask(name=name, prompt="go", agent=maker))
        for name, needs in (("first", ()), ("second", ("first",)))
    ]
    database = DatabaseSettings(is_shared=True, url=fragile.url)
    request = RunRequest(folder=repo, environ=os.environ, database=database)

    report = await run_plan(Plan(name="t", steps=tuple(steps)), request, stop=asyncio.Event(), listen=listen)

    assert [worker.status for found in report.steps for worker in found.worker_results] == ["no_changes"] * 2, report
    assert len(waits) == 1
    assert "does not answer" in waits[0]
    assert_no_server(repo)


def test_a_server_that_is_not_there_is_an_error_at_once(repo: Path) -> None:
    with pytest.raises(Unavailable, match="check its address and role"):
        run(repo, "pass", database="postgresql://me@/x?host=/nonexistent")

    assert_no_server(repo)


def test_an_administrator_without_the_rights_is_named_with_what_it_lacks(repo: Path, server: Server) -> None:
    server.execute("CREATE ROLE plain LOGIN PASSWORD 'word'")
    with pytest.raises(Unavailable, match="ALTER ROLE plain CREATEDB CREATEROLE"):
        run(repo, "pass", database=server.url_of("postgres", "plain"))
    server.execute("ALTER ROLE plain CREATEDB CREATEROLE")
    before = server.shape()
    script = "import psycopg; psycopg.connect(autocommit=True).execute('CREATE TABLE t ()')"

    result = run(repo, script, database=server.url_of("postgres", "plain"))

    assert result.status == "no_changes", result
    assert server.shape() == before
    server.execute("DROP ROLE plain")
    assert_no_server(repo)
