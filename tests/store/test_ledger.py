"""The ledger acknowledges what is committed, and only that."""

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest

from shoal.errors import BadInput, Broken
from shoal.model.events import AgentStarted, Output, Recorded, RunEnded, StepStarted
from shoal.model.status import Status
from shoal.store import database, reader
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at
from shoal.store.write_queue import WriteQueueBounds


def step(number: int, run: str = "r") -> StepStarted:
    return StepStarted(run=run, step=f"step-{number}", workers=number, on_failure="fail_fast")


def line(number: int, session: str = "s", text: str = "") -> Output:
    return Output(run="r", session=session, stream="out", text=text or f"line {number}")


def files(paths: StatePaths) -> list[str]:
    return sorted(path.name for path in (*paths.root.iterdir(), *paths.sessions.iterdir()) if path.is_file())


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return StatePaths.of(tmp_path)


async def test_append_returns_after_its_commit(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        recorded = await ledger.append(step(1), step(2))

        with contextlib.closing(sqlite3.connect(paths.ledger)) as other:
            seen = other.execute("SELECT seq, kind, run FROM events").fetchall()

    assert seen == [(1, "StepStarted", "r"), (2, "StepStarted", "r")]
    assert [one.seq for one in recorded] == [1, 2]
    assert list(reader.read_events(paths)) == list(recorded)


async def test_an_empty_append_is_nothing(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        assert await ledger.append() == ()


async def test_the_ledger_is_held_to_its_durability(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(step(1))

        with contextlib.closing(sqlite3.connect(paths.ledger)) as other:
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert other.execute("PRAGMA user_version").fetchone() == (database.SCHEMA,)


async def test_many_appends_share_few_transactions_and_keep_their_order(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger, asyncio.TaskGroup() as group:
        for number in range(1000):
            group.create_task(ledger.append(step(number), step(number, "other")))

    kept = [
        (one.event.run, one.event.workers) for one in reader.read_events(paths) if isinstance(one.event, StepStarted)
    ]
    assert kept == [(run, number) for number in range(1000) for run in ("r", "other")]
    assert ledger.commits < 100


async def test_a_cancelled_append_harms_no_other(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ledger.append(step(number))) for number in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
        last = await ledger.append(step(99))

    assert all(task.cancelled() or task.result() for task in tasks)
    assert list(reader.read_events(paths))[-1:] == list(last)


async def test_a_body_that_raises_still_closes(paths: StatePaths) -> None:
    with contextlib.suppress(RuntimeError):
        async with open_ledger(store_at(paths)) as ledger:
            ledger.note(line(1))
            raise RuntimeError

    assert "shoal-ledger" not in [thread.name for thread in threading.enumerate()]
    assert files(paths) == ["ledger.db", "s.db"]
    with pytest.raises(Broken, match="closed"):
        await ledger.append(step(1))


async def test_a_cancelled_close_still_ends_the_thread(paths: StatePaths) -> None:
    async def hold() -> None:
        async with open_ledger(store_at(paths)) as ledger:
            for number in range(2000):
                ledger.note(line(number))
            own = asyncio.current_task()
            assert own is not None
            own.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(hold())

    assert "shoal-ledger" not in [thread.name for thread in threading.enumerate()]
    assert len(list(reader.read_session(paths, "s"))) == 2000


async def test_flushed_notes_are_in_their_own_database_in_order(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        for number in range(2500):
            ledger.note(line(number, session=f"s{number % 2}"))
        await ledger.flush("s0")

        texts = [one.event.text for one in reader.read_session(paths, "s0") if isinstance(one.event, Output)]

    assert texts == [f"line {number}" for number in range(0, 2500, 2)]
    assert list(reader.read_events(paths)) == []


async def test_a_forgotten_session_leaves_its_database_and_nothing_else(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        ledger.note(line(1))
        await ledger.flush("s")
        await ledger.forget("s")
        assert [name for name in files(paths) if name.startswith("s.")] == ["s.db"]

        assert len(list(reader.read_session(paths, "s"))) == 1
        assert [name for name in files(paths) if name.startswith("s.")] == ["s.db"]

        ledger.note(line(2))

    assert [one.seq for one in reader.read_session(paths, "s")] == [1, 2]
    assert files(paths) == ["ledger.db", "s.db"]


async def test_more_sessions_than_can_be_kept_open_are_all_written(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        for number in range(200):
            ledger.note(line(number, session=f"s{number % 100}"))
        await ledger.forget("s0")
        await ledger.forget("never-seen")

    assert all(len(list(reader.read_session(paths, f"s{number}"))) == 2 for number in range(100))
    assert files(paths) == sorted(["ledger.db", *(f"s{number}.db" for number in range(100))])


async def test_a_flood_is_bounded_and_what_is_missing_is_counted(paths: StatePaths) -> None:
    total = 30_000
    async with open_ledger(store_at(paths), bounds=WriteQueueBounds(size=800_000, rows=4000)) as ledger:
        for number in range(total):
            ledger.note(line(number, text="0123456789"))
        ledger.note(AgentStarted(run="r", session="s", pid=1))
        ledger.note(line(1, session="quiet"))
        await ledger.forget("s")

    noted = [one.event for one in reader.read_session(paths, "s")]
    outputs = [event for event in noted if isinstance(event, Output)]
    kept = [event for event in outputs if event.text]
    assert 0 < len(kept) < total
    assert 10 * len(kept) + sum(event.dropped for event in outputs) == 10 * total
    assert len(noted) == len(outputs) + 1
    assert [one.event for one in reader.read_session(paths, "quiet")] == [line(1, session="quiet")]


async def test_what_is_missing_is_said_by_the_next_line_kept(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths), bounds=WriteQueueBounds(size=8000)) as ledger:
        ledger.note(line(1, text="é" * 2000))
        ledger.note(line(2, text="x" * 1500))
        ledger.note(line(3, text="kept"))

    dropped = {
        one.event.text: one.event.dropped for one in reader.read_session(paths, "s") if isinstance(one.event, Output)
    }
    assert dropped == {"kept": 5500}


async def test_listeners_hear_all_after_the_commit_and_a_bad_one_only_once(paths: StatePaths) -> None:
    heard: list[Recorded] = []
    calls: list[Recorded] = []
    reported: list[object] = []

    def fail(recorded: Recorded) -> None:
        calls.append(recorded)
        raise ValueError

    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    async with open_ledger(store_at(paths)) as ledger:
        ledger.subscribe(fail)
        leave = ledger.subscribe(heard.append)
        appended = await ledger.append(step(1), step(2))
        assert heard == list(appended)

        ledger.note(line(1))
        await ledger.flush("s")
        leave()
        leave()
        await ledger.append(step(3))

    assert heard[2:] == list(reader.read_session(paths, "s"))
    assert len(calls) == len(reported) == 1


async def test_odd_names_are_recorded_or_refused_by_name(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(step(1, run="odd\ud800\0"))
        with pytest.raises(BadInput, match=r"'\.\./x'"):
            ledger.note(line(1, session="../x"))
        with pytest.raises(TypeError):
            ledger.note(RunEnded(run="r", status=Status.FAILED, duration_seconds=1.0))

    assert [one.event.run for one in reader.read_events(paths)] == ["odd\ud800\0"]
