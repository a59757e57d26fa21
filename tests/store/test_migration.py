"""A ledger of an older Shoal is migrated as a whole or not at all, and what it was is kept beside it."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import Broken
from shoal.model.events import Event, StepStarted
from shoal.store import database
from shoal.store.kind import EventRow
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, store_at

SCHEMA_1 = (
    "PRAGMA journal_mode = WAL",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL, run TEXT, session TEXT, kind TEXT, body TEXT)",
    "CREATE INDEX events_by_run ON events (run)",
    "PRAGMA user_version = 1",
)
# Each statement is a place to be killed at, before it runs and (the next one) after it.
KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at

open_database, left = sqlite3.connect, int(sys.argv[2])

def kill_later(sql):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def connect(*args, **options):
    connection = open_database(*args, **options)
    connection.set_trace_callback(kill_later)
    return connection

sqlite3.connect = connect
store_at(StatePaths.of(Path(sys.argv[1]))).ledger().write([])
"""


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    """The state of a Shoal that knew schema 1, with three events."""
    paths = StatePaths.of(tmp_path)
    paths.create()
    with contextlib.closing(sqlite3.connect(paths.ledger)) as old:
        for statement in SCHEMA_1:
            old.execute(statement)
        for number in range(3):
            row = EventRow.of(step(number), 1.0)
            old.execute(
                "INSERT INTO events (at, run, session, kind, body) VALUES (?, ?, ?, ?, ?)",
                (row.at, row.run, row.session, row.kind, row.body),
            )
        old.commit()
    return paths


def step(number: int) -> StepStarted:
    return StepStarted(run="r", step="x", workers=number, on_failure="any")


def events(paths: StatePaths) -> list[Event]:
    return [recorded.event for recorded in read_events(paths)]


def schema(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def kept(paths: StatePaths) -> list[str]:
    return sorted(path.name for path in paths.root.glob("ledger.db.*"))


async def test_an_old_ledger_is_read_as_it_is_and_migrated_by_the_first_writer(paths: StatePaths) -> None:
    assert events(paths) == [step(0), step(1), step(2)]
    assert schema(paths.ledger) == 1

    async with open_ledger(store_at(paths)) as ledger:
        await ledger.claim("r")
        await ledger.append(step(3))

    assert events(paths) == [step(0), step(1), step(2), step(3)]
    assert schema(paths.ledger) == database.SCHEMA
    assert kept(paths) == ["ledger.db.schema-1"]
    backup = paths.root / "ledger.db.schema-1"
    assert schema(backup) == 1
    with contextlib.closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (3,)


def test_a_kill_at_any_statement_of_a_migration_leaves_the_old_ledger_or_the_new_one(paths: StatePaths) -> None:
    seen, place, is_over = set(), 0, False
    while not is_over:
        place += 1
        done = subprocess.run([sys.executable, "-c", KILLED, str(paths.root.parent), str(place)], check=False)
        is_over = done.returncode == 0
        assert done.returncode in (0, -signal.SIGKILL)
        assert events(paths) == [step(0), step(1), step(2)]
        seen.add(schema(paths.ledger))

    assert seen == {1, database.SCHEMA}
    assert place > len(database.MIGRATIONS[1]) + 5
    assert kept(paths) == ["ledger.db.schema-1"]


def test_a_migration_that_fails_changes_nothing(paths: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(database.MIGRATIONS, 1, (*database.MIGRATIONS[1], "INSERT INTO nowhere VALUES (1)"))

    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        store_at(paths).ledger().write([])

    assert schema(paths.ledger) == 1
    assert events(paths) == [step(0), step(1), step(2)]


async def test_a_migration_that_is_refused_is_told_to_who_opens_the_ledger(
    paths: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database.MIGRATIONS, 1, ("INSERT INTO nowhere VALUES (1)",))

    with pytest.raises(Broken, match="nowhere"):
        async with open_ledger(store_at(paths)):
            pass


def test_an_older_shoal_that_has_it_open_goes_on_writing(paths: StatePaths) -> None:
    with contextlib.closing(sqlite3.connect(paths.ledger, isolation_level=None)) as old:
        row = EventRow.of(step(3), 1.0)
        insert = "INSERT INTO events (at, run, session, kind, body) VALUES (?, ?, ?, ?, ?)"
        values = (row.at, row.run, row.session, row.kind, row.body)
        old.execute(insert, values)
        store_at(paths).ledger().write([])
        old.execute(insert, values)

    assert schema(paths.ledger) == database.SCHEMA
    assert events(paths) == [step(0), step(1), step(2), step(3), step(3)]


def test_a_ledger_that_cannot_be_backed_up_is_not_migrated(paths: StatePaths) -> None:
    (paths.root / "ledger.db.schema-1").mkdir()

    with pytest.raises(OSError, match="schema-1"):
        store_at(paths).ledger().write([])

    assert schema(paths.ledger) == 1
