"""Readers see everything and leave no trace."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import Broken
from shoal.model.events import Output, ResourcesSampled, StepStarted
from shoal.model.resources import ResourceSample
from shoal.store import reader
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at


def step(number: int, run: str) -> StepStarted:
    return StepStarted(run=run, step="x", workers=number, on_failure="any")


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_where_nothing_is_nothing_is_read_or_made(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)

    assert list(reader.read_events(paths)) == list(reader.read_session(paths, "s")) == []
    assert reader.list_runs(paths) == []
    assert everything(tmp_path) == []


async def test_reading_makes_no_files_even_at_rest_and_in_odd_folders(tmp_path: Path) -> None:
    (tmp_path / "a b?#%41é").mkdir()
    paths = StatePaths.of(tmp_path / "a b?#%41é")
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(step(1, "r"))
        ledger.note(Output(run="r", session="s", stream="out", text="x"))
    before = everything(tmp_path)

    assert len(list(reader.read_events(paths))) == len(list(reader.read_session(paths, "s"))) == 1
    assert everything(tmp_path) == before


async def test_samples_are_read_apart_from_the_rest_of_a_log_and_thinned_evenly(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    async with open_ledger(store_at(paths)) as ledger:
        for number in range(101):
            ledger.note(Output(run="r", session="s", stream="out", text="x"))
            sample = ResourceSample(memory_mb=float(number))
            ledger.note(ResourcesSampled(run="r", session="s", sample=sample))

    assert [taken.sample.memory_mb for taken in reader.read_samples(paths, "s")] == list(range(101))
    assert [taken.sample.memory_mb for taken in reader.read_samples(paths, "s", most=11)] == [*range(0, 101, 11), 100]


def test_a_damaged_database_is_broken_and_left_alone(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    paths.create()
    paths.ledger.write_bytes(b"x" * 5000)

    with pytest.raises(Broken, match=r"ledger\.db cannot be read"):
        reader.list_runs(paths)
    assert paths.ledger.exists()


HOT = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = DELETE")
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE events SET body = 'half' || hex(randomblob(5000))")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("log", ["ledger.db", "sessions/s.db"])
async def test_a_journal_that_a_killed_writer_left_is_rolled_back_by_the_next_reader(tmp_path: Path, log: str) -> None:
    paths = StatePaths.of(tmp_path)
    events = [Output(run="r", session="s", stream="out", text="x" * 3000) for _ in range(50)]
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(*events)
        for event in events:
            ledger.note(event)
    killed = subprocess.run([sys.executable, "-c", HOT, str(paths.root / log)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (paths.root / f"{log}-journal").stat().st_size > 0

    assert [entry.event for entry in reader.read_events(paths)] == events
    assert [entry.event for entry in reader.read_session(paths, "s")] == events
    assert not (paths.root / f"{log}-journal").exists()


async def test_the_ledger_never_leaves_wal_mode(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    for number in range(2):
        async with open_ledger(store_at(paths)) as ledger:
            await ledger.append(step(number, "r"))
        assert paths.ledger.read_bytes()[18:20] == b"\2\2"
        assert len(list(reader.read_events(paths))) == number + 1
    assert sorted(path.name for path in paths.root.glob("ledger.db*")) == ["ledger.db"]


async def test_a_damaged_byte_costs_one_word_and_no_event(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(step(1, "r"), step(2, "r"))
    damaged = paths.ledger.read_bytes().replace(b'"on_failure":"any"', b'"on_failure":"a\xffy"', 1)
    paths.ledger.write_bytes(damaged)

    assert [entry.seq for entry in reader.read_events(paths)] == [1, 2]


def test_a_log_that_a_power_cut_took_is_an_empty_one(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    paths.create()
    paths.session_db("s-1").touch()

    assert list(reader.read_session(paths, "s-1")) == []
