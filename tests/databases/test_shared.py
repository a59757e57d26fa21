"""Agents that share one PostgreSQL server: each has its own schema, cannot reach another's, and leaves nothing."""

import json
import os
import sys
from pathlib import Path

import pytest

from shoal import AgentCoordinator, IsolatedAgentSession, Task
from shoal.model.results import WorkerResult
from tests.acting import assert_nothing_left, shown
from tests.conftest import git
from tests.postgres import Server

PYTHON = sys.executable
"""The tests' own Python, which has a driver."""

# Two agents at once: each fills a table, waits for the other's, and tries whatever could reach it.
PROBE = """
import json, os, sys, time, psycopg
def connect(**how): return psycopg.connect(autocommit=True, **how)
def wait_for(table):
    for _ in range(1200):
        found = mine.execute("SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relname = %s AND n.nspname <> current_schema", (table,)).fetchone()
        if found: return found[0]
        time.sleep(0.05)
    sys.exit("the other agent did not come")
mine = connect()
mine.execute("CREATE TABLE secret (word text)")
mine.execute("INSERT INTO secret VALUES (current_user)")
other = wait_for("secret")
own = mine.execute("SELECT current_user").fetchone()[0]
try:
    mine.execute(f"GRANT USAGE ON SCHEMA {own} TO {other}")  # by a role that does not own it: a warning, or an error
except psycopg.Error:
    pass
mine.execute("CREATE TABLE granted ()")
wait_for("granted")
tries = {
    "read": f"SELECT * FROM {other}.secret",
    "write": f"CREATE TABLE {other}.x (y int)",
    "drop": f"DROP SCHEMA {other} CASCADE",
    "become": f"SET ROLE {other}",
    "terminate": "SELECT pg_terminate_backend(pg_stat_get_backend_pid(i)) FROM pg_stat_get_backend_idset() i"
        f" WHERE pg_stat_get_backend_userid(i) = '{other}'::regrole",
    "watch": "SELECT query FROM pg_stat_activity",
    "schema": "CREATE SCHEMA another",
    "public": "CREATE TABLE public.x (y int)",
    "extension": "CREATE EXTENSION dblink",
    "file": "SELECT pg_read_file('postgresql.conf')",
    "program": "COPY (SELECT 1) TO PROGRAM 'cat'",
    "large object": "SELECT lo_create(0)",
    "role": "CREATE ROLE another",
    "password": f"ALTER ROLE {other} PASSWORD 'x'",
    "setting": "ALTER SYSTEM SET work_mem = '1GB'",
}
found = {}
for name, statement in tries.items():
    try:
        mine.execute(statement)
        found[name] = "done"
    except psycopg.Error as error:
        found[name] = error.sqlstate
for name, how in {"as another": {"user": other}, "elsewhere": {"dbname": "postgres"}, "word": {"password": "x"}}.items():
    try:
        connect(**how)
        found[name] = "connected"
    except psycopg.OperationalError as error:
        found[name] = str(error).strip().rpartition("FATAL:")[2].strip()
mine.execute("CREATE TABLE over ()")
wait_for("over")
with open("found.json", "w") as file: json.dump({"other": other, "own": own, **found}, file)
"""


def agent(script: str) -> dict[str, object]:
    return {"adapter": "command", "command": [PYTHON, "-c", script]}


def found_by(repo: Path, result: WorkerResult) -> dict[str, str]:
    assert result.status == "succeeded", result
    found: dict[str, str] = json.loads(shown(repo, result, "found.json"))
    return found


def assert_no_server(repo: Path) -> None:
    """No server, no sockets, and no note of them is left of the run."""
    state = repo / ".shoal" / "databases"
    assert not state.exists() or list(state.iterdir()) == []
    assert servers_of(repo) == []


def servers_of(repo: Path) -> list[str]:
    """List the server processes with files in *repo*."""
    return [line for line in _command_lines() if f"{repo}/.shoal/databases" in line]


def _command_lines() -> list[str]:
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
def test_no_agent_reaches_what_another_has(repo: Path, sandbox: str) -> None:
    config = {
        "database_strategy": "shared",
        "sandbox": sandbox,
        "network": "none" if sandbox == "bubblewrap" else "host",
    }

    first, second = AgentCoordinator(repo, config=config, agent=agent(PROBE)).run_agents_sync([Task("a"), Task("b")])

    one, two = found_by(repo, first), found_by(repo, second)
    assert (one["own"], one["other"]) == (two["other"], two["own"])
    for found in (one, two):
        refused = {name: code for name, code in found.items() if name not in ("own", "other")}
        words = {name: refused.pop(name) for name in ("as another", "elsewhere", "word")}
        assert set(refused.values()) == {"42501"}, refused
        assert words["as another"] == f'this session may connect only as "{found["own"]}"'
        assert words["elsewhere"].startswith("this session may connect only to the database")
        assert words["word"] == f'password authentication failed for user "{found["own"]}"'
    assert_nothing_left(repo)
    assert_no_server(repo)


def test_a_database_is_kept_as_sql_and_only_if_something_is_in_it(repo: Path) -> None:
    config = {"database_strategy": "shared", "keep_database": True}
    fill = "import psycopg; psycopg.connect(autocommit=True).execute('CREATE TABLE t AS SELECT 42 AS answer')"

    filled, empty = AgentCoordinator(repo, config=config).run_agents_sync(
        [Task("fill", agent=agent(fill)), Task("nothing", agent=agent("pass"))]
    )

    kept = Path(filled.artifacts["database"]).read_text()
    assert "CREATE TABLE" in kept
    assert "\n42\n" in kept
    assert "database" not in empty.artifacts
    assert_no_server(repo)


def test_a_users_own_server_gets_back_what_it_was(repo: Path, server: Server) -> None:
    before = server.shape()
    url = "import os; open('found.json', 'w').write('{\"url\": \"%s\"}' % os.environ['DATABASE_URL'])"
    environ = {**os.environ, "TEST_SERVER": server.url}
    config = {"database_strategy": "shared", "database": {"from": "TEST_SERVER"}, "environ": environ}

    (result,) = AgentCoordinator(repo, config=config, agent=agent(url)).run_agents_sync([Task("a")])

    assert found_by(repo, result)["url"].startswith("postgresql://shoal_")
    assert server.shape() == before
    assert_no_server(repo)


def test_an_open_session_has_a_schema_of_its_own(repo: Path) -> None:
    with IsolatedAgentSession("mine", repo, database_strategy="shared") as session:
        done = session.run([PYTHON, "-c", "import psycopg; print(*psycopg.connect().execute('SELECT current_schema'))"])

    assert "shoal_" in done.output, done
    assert git(repo, "status", "--porcelain") == ""
    assert_no_server(repo)
