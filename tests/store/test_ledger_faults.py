"""The ledger under kill -9, a full disk, damage, and concurrent writers."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import BadInput, Broken
from shoal.model.events import Output, StepStarted
from shoal.store import reader
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at

PRELUDE = """
import asyncio, resource, sys
from pathlib import Path
from shoal.errors import Broken
from shoal.model.events import Output, StepStarted
from shoal.store.ledger import open_ledger
from shoal.store.reader import store_at
from shoal.store.paths import StatePaths

def step(run, number):
    return StepStarted(run=run, step="x", workers=number, on_failure="any")

def said(text):
    sys.stdout.write(f"{text}\\n")
    sys.stdout.flush()
"""
ENDLESS = """
async def main(root, run):
    async with open_ledger(store_at(StatePaths.of(Path(root)))) as ledger:
        for number in range(1_000_000):
            ledger.note(Output(run=run, session=run, stream="out", text="x"))
            await ledger.append(step(run, number))
            said(number)
"""
COUNTED = """
async def main(root, run):
    async with open_ledger(store_at(StatePaths.of(Path(root)))) as ledger, asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(ledger.append(step(run, number)))
            await asyncio.sleep(0)
"""
FULL = """
def allow(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def attempt(ledger, number):
    try:
        await ledger.append(step("r", number), Output(run="r", session="s", stream="out", text="y" * 60_000))
        said(f"kept {number}")
    except Broken:
        said(f"refused {number}")

async def main(root, run):
    async with open_ledger(store_at(StatePaths.of(Path(root)))) as ledger:
        await attempt(ledger, 1)
        allow(20_000)
        await attempt(ledger, 2)
        await attempt(ledger, 3)
        ledger.note(Output(run="r", session="s", stream="out", text="z" * 200_000))
        try:
            await ledger.flush("s")
        except Broken:
            said("refused note")
        allow(resource.RLIM_INFINITY)
        await attempt(ledger, 4)
        ledger.note(Output(run="r", session="s", stream="out", text="z"))
        await ledger.flush("s")
"""
ABANDONED = """
async def main(root, run):
    global kept
    kept = open_ledger(store_at(StatePaths.of(Path(root))))
    ledger = await kept.__aenter__()
    await ledger.append(step(run, 1))

loop = asyncio.new_event_loop()
loop.run_until_complete(main(*sys.argv[1:]))
loop.close()
sys.exit()
"""


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return StatePaths.of(tmp_path)


def begun(paths: StatePaths, program: str, run: str = "r") -> "subprocess.Popen[str]":
    code = f"{PRELUDE}{program}\nasyncio.run(main(*sys.argv[1:]))\n"
    argv = [sys.executable, "-c", code, str(paths.root.parent), run]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def numbers(paths: StatePaths, run: str) -> list[int]:
    return [one.event.workers for one in reader.read_events(paths, run) if isinstance(one.event, StepStarted)]


def step(number: int) -> StepStarted:
    return StepStarted(run="r", step="x", workers=number, on_failure="any")


def test_kill_9_loses_nothing_that_was_acknowledged(paths: StatePaths) -> None:
    for round_number in range(6):
        with begun(paths, ENDLESS, run := f"run-{round_number}") as child:
            assert child.stdout is not None
            for _ in range(5 + 17 * round_number):
                child.stdout.readline()
            child.kill()
            acknowledged = [int(line) for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]

        kept = numbers(paths, run)
        assert kept == list(range(len(kept)))
        assert len(kept) > max(acknowledged, default=4 + 17 * round_number)
        noted = [one.seq for one in reader.read_session(paths, run)]
        assert noted == list(range(1, len(noted) + 1))

    with contextlib.closing(sqlite3.connect(paths.ledger)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_processes_that_start_and_write_at_once_all_keep_their_order(paths: StatePaths) -> None:
    children = [begun(paths, COUNTED, f"run-{number}") for number in range(4)]
    for child in children:
        with child:
            assert child.wait(60) == 0

    assert [numbers(paths, f"run-{number}") for number in range(4)] == [list(range(300))] * 4
    assert [one.seq for one in reader.read_events(paths)] == list(range(1, 1201))
    assert sorted(path.name for path in paths.root.glob("ledger.db*")) == ["ledger.db"]


def test_a_full_disk_is_never_acknowledged_and_forgotten_once_there_is_room(paths: StatePaths) -> None:
    with begun(paths, FULL) as child:
        said, _ = child.communicate(timeout=60)

    assert child.returncode == 0
    assert said.splitlines() == ["kept 1", "refused 2", "refused 3", "refused note", "kept 4"]
    assert numbers(paths, "r") == [1, 4]
    assert [one.event.text for one in reader.read_session(paths, "s") if isinstance(one.event, Output)] == ["z"]


def test_an_abandoned_ledger_does_not_keep_the_interpreter(paths: StatePaths) -> None:
    with begun(paths, ABANDONED) as child:
        assert child.wait(30) == 0

    assert numbers(paths, "r") == [1]


async def test_a_ledger_locked_for_a_while_is_waited_for(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        with contextlib.closing(sqlite3.connect(paths.ledger, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(ledger.append(step(1)))
                done, _ = await asyncio.wait([waiting], timeout=0.2)
                assert not done
                other.execute("COMMIT")

    assert numbers(paths, "r") == [1]


async def test_a_ledger_locked_for_long_is_waited_for_and_that_is_said(
    paths: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.store.database.BUSY_SECONDS", 0.01)
    loop, waited, said = asyncio.get_running_loop(), asyncio.Event(), list[str]()

    def hear(reason: str) -> None:
        said.append(reason)
        loop.call_soon_threadsafe(waited.set)

    async with open_ledger(store_at(paths), on_blocked=hear) as ledger:
        with contextlib.closing(sqlite3.connect(paths.ledger, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with asyncio.TaskGroup() as group:
                group.create_task(ledger.append(step(1)))
                await waited.wait()
                done, _ = await asyncio.wait([group.create_task(ledger.append(step(2)))], timeout=0.5)
                assert not done
                other.execute("COMMIT")

    assert numbers(paths, "r") == [1, 2]
    assert said[0] == f"another program has locked {paths.ledger}"
    assert said[-1] == "", "and that it is over"
    assert len(said) in (2, 4), "once for each write that waits"


async def test_a_damaged_ledger_is_moved_aside_and_named(paths: StatePaths) -> None:
    paths.create()
    paths.ledger.write_bytes(b"not a database" * 500)
    Path(f"{paths.ledger}-wal").write_bytes(b"log")
    said: list[str] = []

    async with open_ledger(store_at(paths, said.append)) as ledger:
        await ledger.append(step(1))
    assert "kept as" in said[0]
    assert "ledger.db.corrupt-1" in said[0]
    assert numbers(paths, "r") == [1]
    assert (paths.root / "ledger.db.corrupt-1").read_bytes() == b"not a database" * 500
    assert (paths.root / "ledger.db.corrupt-1-wal").read_bytes() == b"log"


async def test_a_ledger_damaged_twice_overwrites_nothing(paths: StatePaths) -> None:
    paths.create()
    for number in (1, 2):
        paths.ledger.write_bytes(bytes([number]) * 5000)
        async with open_ledger(store_at(paths)):
            assert (paths.root / f"ledger.db.corrupt-{number}").exists()

    assert (paths.root / "ledger.db.corrupt-1").read_bytes()[:1] == b"\1"


async def test_a_damaged_session_is_told_and_then_begun_anew(paths: StatePaths) -> None:
    paths.create()
    paths.session_db("s").write_bytes(b"x" * 5000)
    output = Output(run="r", session="s", stream="out", text="hello")

    async with open_ledger(store_at(paths)) as ledger:
        ledger.note(output)
        with pytest.raises(Broken, match="corrupt-1"):
            await ledger.flush("s")
        ledger.note(output)
        await ledger.forget("s")

    assert [one.event for one in reader.read_session(paths, "s")] == [output]


async def test_a_ledger_of_a_newer_shoal_is_refused_untouched(paths: StatePaths) -> None:
    paths.create()
    with contextlib.closing(sqlite3.connect(paths.ledger)) as newer:
        newer.execute("PRAGMA user_version = 7")
    before = paths.ledger.read_bytes()

    with pytest.raises(BadInput, match="schema 7"):
        async with open_ledger(store_at(paths)):
            pass
    with pytest.raises(BadInput, match="schema 7"):
        list(reader.read_events(paths))
    assert paths.ledger.read_bytes() == before


async def test_a_removed_ledger_is_no_place_to_acknowledge_from(paths: StatePaths) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(step(1))
        paths.ledger.unlink()

        with pytest.raises(Broken, match="removed or replaced"):
            await ledger.append(step(2))


async def test_a_ledger_whose_repository_is_moved_is_waited_for_until_it_is_back(paths: StatePaths) -> None:
    loop, waited, elsewhere = asyncio.get_running_loop(), asyncio.Event(), paths.root.with_name("elsewhere")

    def hear(_: str) -> None:
        loop.call_soon_threadsafe(waited.set)

    async with open_ledger(store_at(paths), on_blocked=hear) as ledger:
        await ledger.append(step(1))
        paths.root.rename(elsewhere)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            writing = group.create_task(ledger.append(step(2)))
            await waited.wait()
            assert not writing.done()
            elsewhere.rename(paths.root)

    assert numbers(paths, "r") == [1, 2]


async def test_state_that_is_moved_away_is_an_error_and_hangs_nobody(paths: StatePaths) -> None:
    with contextlib.suppress(Broken):
        async with asyncio.timeout(30), open_ledger(store_at(paths)) as ledger:
            ledger.note(Output(run="r", session="s", stream="out", text="x"))
            await ledger.flush("s")
            paths.root.rename(paths.root.with_name("elsewhere"))
            ledger.note(Output(run="r", session="s", stream="out", text="y"))

            with pytest.raises(Broken):
                await ledger.forget("s")
            with contextlib.suppress(Broken):
                await ledger.forget("t")
