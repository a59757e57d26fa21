"""Readers see what is there and leave no trace."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from shoal.errors import Broken
from shoal.model.events import Output, StepStarted
from shoal.store import reader as read
from shoal.store.ledger import opened
from shoal.store.paths import StatePaths


def step(number: int, run: str) -> StepStarted:
    return StepStarted(run=run, step="x", workers=number, on_failure="any")


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_where_nothing_is_nothing_is_read_or_made(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)

    assert list(read.events(paths)) == list(read.session_events(paths, "s")) == []
    assert read.run_ids(paths) == []
    assert everything(tmp_path) == []


async def test_events_are_read_by_run_and_from_a_number_on(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    async with opened(paths) as ledger:
        await ledger.append(*(step(number, f"run-{number % 3}") for number in range(2500)))

        assert [one.seq for one in read.events(paths, after=2497)] == [2498, 2499, 2500]
        assert [one.seq for one in read.events(paths, "run-1", after=2490)] == [2492, 2495, 2498]
        assert len(list(read.events(paths))) == 2500
        assert read.run_ids(paths) == ["run-2", "run-1", "run-0"]


async def test_reading_makes_no_files_even_at_rest_and_in_odd_folders(tmp_path: Path) -> None:
    (tmp_path / "a b?#%41é").mkdir()
    paths = StatePaths.of(tmp_path / "a b?#%41é")
    async with opened(paths) as ledger:
        await ledger.append(step(1, "r"))
        ledger.note(Output(run="r", session="s", stream="out", text="x"))
    before = everything(tmp_path)

    assert len(list(read.events(paths))) == len(list(read.session_events(paths, "s"))) == 1
    assert everything(tmp_path) == before


async def test_kinds_from_the_future_are_passed_over(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    async with opened(paths) as ledger:
        await ledger.append(step(1, "r"))
        with contextlib.closing(sqlite3.connect(paths.ledger, isolation_level=None)) as newer:
            newer.execute("INSERT INTO events (at, run, kind, body) VALUES (1.0, 'r', 'Dreamt', '{}')")
        await ledger.append(step(2, "r"))

    assert [one.seq for one in read.events(paths)] == [1, 3]


def test_a_damaged_database_is_broken_and_left_alone(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    paths.create()
    paths.ledger.write_bytes(b"x" * 5000)

    with pytest.raises(Broken, match=r"ledger\.db cannot be read"):
        read.run_ids(paths)
    assert paths.ledger.exists()
