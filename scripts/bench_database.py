"""Compare agents with a SQLite file each and agents that share a PostgreSQL server: python -m scripts.bench_database [AGENTS]."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shoal import AgentCoordinator, Task
from shoal.model.results import WorkerResult

ROWS = 200
SQLITE = f"""
import os, sqlite3
with sqlite3.connect(os.environ["DATABASE_URL"].removeprefix("sqlite:///")) as database:
    database.execute("CREATE TABLE t (id integer PRIMARY KEY, word text)")
    for number in range({ROWS}):
        database.execute("INSERT INTO t (word) VALUES (?)", (str(number),))
        database.commit()
    assert database.execute("SELECT count(*) FROM t").fetchone() == ({ROWS},)
"""
POSTGRES = f"""
import psycopg
with psycopg.connect(autocommit=True) as database:
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, word text)")
    for number in range({ROWS}):
        database.execute("INSERT INTO t (word) VALUES (%s)", (str(number),))
    assert database.execute("SELECT count(*) FROM t").fetchone() == ({ROWS},)
"""


def run(strategy: str, script: str, agents: int) -> tuple[float, list[WorkerResult]]:
    """Run the agents at once, and measure all of it, with the server's start and end."""
    with tempfile.TemporaryDirectory() as folder:
        repo = Path(folder, "repo")
        identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        subprocess.run(["git", "init", "-q", repo], check=True)
        subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "first"], cwd=repo, check=True)
        worker = {"adapter": "command", "command": [sys.executable, "-c", script]}
        config = {"database_strategy": strategy, "max_concurrent": agents, "environ": dict(os.environ)}
        coordinator = AgentCoordinator(repo, config=config, agent=worker)
        began = time.monotonic()
        results = coordinator.run_agents_sync([Task("go", name=f"t{number}") for number in range(agents)])
        return time.monotonic() - began, results


def main() -> None:
    """Print one line for each strategy."""
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    for strategy, script in (("per_agent", SQLITE), ("shared", POSTGRES)):
        seconds, results = run(strategy, script, agents)
        wrong = [result.error for result in results if not result.status.is_good]
        took = statistics.median(result.duration_seconds for result in results)
        print(
            f"{strategy:9}  {agents} agents x {ROWS} rows: {seconds:6.1f} s in all, {took:5.2f} s median session,",
            end=" ",
        )
        print(f"{len(wrong)} failed {wrong[:1] or ''}")


if __name__ == "__main__":
    main()
