"""Notes of a short session: written without its database ever being opened for more."""

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest

from shoal.model.events import Output
from shoal.store.backlog import RIPE_SECONDS, Appends, Backlog, BacklogBounds, BacklogEntry, Notes
from shoal.store.database import Database, EventRow, Mould
from shoal.store.ledger import opened
from shoal.store.paths import StatePaths
from shoal.store.reader import session_events


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "s.db", synchronous="NORMAL", lock=tmp_path / "lock")


def row(text: str) -> EventRow:
    return EventRow(1.0, "r", "s", "Output", text)


def rows(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [body for (body,) in connection.execute("SELECT body FROM events ORDER BY seq")]


def test_first_and_last_rows_need_no_log_and_leave_nothing_beside_the_database(
    database: Database, tmp_path: Path
) -> None:
    assert database.write_whole([row("a"), row("b")], Mould()) == [1, 2]
    assert database.write_last([row("c")]) == [3]

    assert rows(tmp_path / "s.db") == ["a", "b", "c"]
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]


def test_one_mould_makes_databases_that_know_nothing_of_each_other(tmp_path: Path) -> None:
    mould = Mould()

    images = [mould.fill(tmp_path, [row(word * 20)]) for word in ("first", "second")]
    mould.close()

    assert [numbers for _, numbers in images] == [[1], [1]]
    assert b"second" in images[1][0]
    assert b"first" not in images[1][0]


def test_a_database_that_is_there_is_never_written_over(database: Database, tmp_path: Path) -> None:
    database.write([row("a")])

    assert database.write_whole([row("b")], Mould()) is None
    assert database.write_last([row("b")]) is None  # it is open

    assert rows(tmp_path / "s.db") == ["a"]


def test_a_log_that_a_power_cut_took_is_an_empty_one(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    paths.create()
    paths.session_db("s-1").touch()

    assert list(session_events(paths, "s-1")) == []


def test_what_is_no_database_is_left_to_the_usual_way(database: Database, tmp_path: Path) -> None:
    (tmp_path / "s.db").write_text("nothing that SQLite knows" * 100)

    assert database.write_last([row("a")]) is None


def test_a_reader_sends_the_last_rows_the_usual_way(database: Database, tmp_path: Path) -> None:
    database.write_whole([row("a")], Mould())

    with sqlite3.connect(tmp_path / "s.db", isolation_level=None) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM events").fetchall()
        assert database.write_last([row("b")]) is None
        reader.execute("ROLLBACK")

    assert rows(tmp_path / "s.db") == ["a"]


def test_notes_rest_until_they_are_due_and_facts_do_not_wait_for_them() -> None:
    backlog = Backlog(BacklogBounds())
    began = time.monotonic()
    backlog.note("s", BacklogEntry(said("a"), row("a")))
    backlog.note("t", BacklogEntry(said("b"), row("b")))
    backlog.note("s", BacklogEntry(said("c"), row("c")))

    taken = [backlog.take(), backlog.take()]

    assert time.monotonic() - began >= RIPE_SECONDS
    assert [(one.session, len(one.entries)) for one in taken if isinstance(one, Notes)] == [("s", 2), ("t", 1)]
    assert not any(isinstance(one, Appends) for one in taken)


async def test_a_short_session_is_written_whole_and_told_in_order(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    heard: list[int] = []

    async with opened(paths) as ledger:
        ledger.subscribe(lambda recorded: heard.append(recorded.seq))
        ledger.note(said("a"))
        ledger.note(said("b"))
        await ledger.forget("s")
        files = sorted(path.name for path in paths.sessions.iterdir())
        ledger.note(said("c"))
        await ledger.forget("s")

    assert files == ["s.db"]
    assert heard == [1, 2, 3]
    assert len(rows(paths.session_db("s"))) == 3


def said(text: str) -> Output:
    return Output(run="r", session="s", stream="stdout", text=text)
