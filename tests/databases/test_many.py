"""Fifty agents at once on one server: no lock error, no failed connection, and no connection left."""

import json
from pathlib import Path

import pytest

from shoal import AgentCoordinator, Task
from tests.acting import assert_nothing_left, shown
from tests.databases.test_shared import agent, assert_no_server
from tests.postgres import Server

AGENTS, ROWS = 50, 20
WRITE = f"""
import json, psycopg
with psycopg.connect(autocommit=True) as database:
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, word text)")
    for number in range({ROWS}):
        with psycopg.connect() as other:  # a connection for each row
            other.execute("INSERT INTO t (word) VALUES (%s)", (str(number),))
    count, last = database.execute("SELECT count(*), max(word::int) FROM t").fetchone()
json.dump([count, last], open("found.json", "w"))
"""


@pytest.mark.deep
def test_fifty_agents_write_at_once_and_no_connection_is_left(repo: Path, server: Server) -> None:
    config = {"database_strategy": "shared", "database": server.url, "max_concurrent": AGENTS}
    tasks = [Task(f"t{number}", name=f"t{number}") for number in range(AGENTS)]
    before = server.shape()

    results = AgentCoordinator(repo, config=config, agent=agent(WRITE)).run_agents_sync(tasks)

    assert [result.status.value for result in results] == ["succeeded"] * AGENTS
    assert {tuple(json.loads(shown(repo, result, "found.json"))) for result in results} == {(ROWS, ROWS - 1)}
    assert server.shape() == before
    others = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    assert server.execute(others) == []
    assert_nothing_left(repo)
    assert_no_server(repo)
