"""A ledger that is lost or damaged is rebuilt from what can still be found, and that is reported."""

import contextlib
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.errors import Broken
from shoal.model.events import Imported, Output, RunEnded, RunStarted, SessionEnded, SessionStarted, StepStarted
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.store.fold import fold
from shoal.store.killed_runs import record_lost_sessions
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import list_runs, read_events, read_session, store_at
from shoal.store.run_state import State

RUN = "work-20261118-a1b2"
KILLED = "work-20261118-c3d4"


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return StatePaths.of(tmp_path)


def started(run: str, session: str) -> SessionStarted:
    return SessionStarted(
        run=run,
        step="work",
        session=session,
        index=0,
        branch=f"agent/work/{session}",
        base="c0ffee",
        strategy="overlay",
        workspace=f"/r/.shoal/workspaces/{run}/work/worker_0",
    )


async def record_history(paths: StatePaths) -> None:
    """Record a run that ended and one that was killed, as sessions do."""
    result = WorkerResult(index=0, session="done", status=Status.SUCCEEDED, branch="agent/work/done", commit="beef")
    ended = SessionEnded(run=RUN, step="work", session="done", result=result)
    imported = Imported(run=RUN, session="done", branch="agent/work/done", commit="beef", files_changed=1)
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(
            RunStarted(run=RUN, name="work", base="c0ffee", wall="bubblewrap", workspace="overlay", owner=1),
            StepStarted(run=RUN, step="work", workers=1, on_failure="any"),
        )
        await ledger.append(started(RUN, "done"))
        ledger.note(Output(run=RUN, session="done", stream="out", text="hello"))
        for event in (imported, ended):
            ledger.note(event)
        await ledger.forget("done")
        await ledger.append(imported, ended, RunEnded(run=RUN, status=Status.SUCCEEDED, duration_seconds=1.0))
        await ledger.append(started(KILLED, "killed"))


async def reopen(paths: StatePaths) -> tuple[State, list[str]]:
    said: list[str] = []
    async with open_ledger(store_at(paths, said.append)):
        return fold(read_events(paths)), said


def remove(paths: StatePaths) -> None:
    for file in paths.root.glob("ledger.db*"):
        file.unlink()


def empty(paths: StatePaths) -> None:
    remove(paths)
    paths.ledger.touch()


def zero(paths: StatePaths) -> None:
    paths.ledger.write_bytes(bytes(paths.ledger.stat().st_size))


def truncate(paths: StatePaths) -> None:
    with paths.ledger.open("r+b") as file:
        file.truncate(paths.ledger.stat().st_size // 2)


@pytest.mark.parametrize("lose", [remove, empty, zero, truncate])
async def test_a_lost_ledger_is_rebuilt_from_the_logs_of_its_sessions(
    paths: StatePaths, lose: Callable[[StatePaths], None]
) -> None:
    await record_history(paths)
    lose(paths)

    with pytest.raises(Broken, match="shoal clean"):  # who only reads says so, and never that there was nothing
        list(read_events(paths))
    state, said = await reopen(paths)

    assert len(said) == 1
    done, killed = state.runs[RUN], state.runs[KILLED]
    assert done.status is Status.SUCCEEDED
    assert done.base == "c0ffee"
    result = done.steps["work"].sessions["done"].result
    assert result is not None
    assert (result.branch, result.commit) == ("agent/work/done", "beef")
    assert not killed.status.is_ended
    assert killed.steps["work"].sessions["killed"].result is None
    assert paths.run_lock(KILLED).exists(), "so that recovery finds it"
    assert not paths.run_lock(RUN).exists()
    assert (await reopen(paths))[1] == [], "and only once"


async def test_what_can_be_read_of_a_damaged_ledger_is_kept(paths: StatePaths) -> None:
    await record_history(paths)
    async with open_ledger(store_at(paths)) as ledger:
        for number in range(200):
            await ledger.append(StepStarted(run=RUN, step=f"s{number:04d}" + "x" * 400, workers=1, on_failure="any"))
    damage = bytearray(paths.ledger.read_bytes())
    middle = len(damage) // 8192 * 4096
    damage[middle : middle + 4096] = b"\xff" * 4096
    paths.ledger.write_bytes(damage)

    state, said = await reopen(paths)

    assert "was damaged and is kept as" in said[0]
    assert Path(f"{paths.ledger}.corrupt-1").read_bytes() == damage
    names = [name[:5] for name in state.runs[RUN].steps]
    assert "s0000" in names
    assert "s0199" in names
    assert len(names) > 150
    assert state.runs[RUN].status is Status.SUCCEEDED


async def test_sessions_whose_log_does_not_say_their_run_are_named(paths: StatePaths) -> None:
    await record_history(paths)
    with contextlib.closing(sqlite3.connect(paths.session_db("old"), isolation_level=None)) as other:
        other.execute(
            "CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL, run TEXT, session TEXT, kind TEXT, body TEXT)"
        )
    remove(paths)

    _, said = await reopen(paths)

    assert "the runs of these are unknown: old" in said[0]


async def test_the_log_of_a_session_shows_only_what_its_agent_did(paths: StatePaths) -> None:
    await record_history(paths)

    assert [type(recorded.event) for recorded in read_session(paths, "done")] == [Output]


async def test_a_log_of_writes_that_is_deleted_after_a_kill_costs_no_session(paths: StatePaths) -> None:
    await record_history(paths)
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(started(KILLED, "late"))
        await ledger.flush("late")
        before = paths.ledger.read_bytes()  # what a kill and the loss of `-wal` leave
    paths.ledger.write_bytes(before)
    assert "late" not in fold(read_events(paths)).runs[KILLED].steps["work"].sessions

    async with open_ledger(store_at(paths)) as ledger:
        assert await record_lost_sessions(paths, ledger, ["killed", "late"]) == ("late",)
        assert await record_lost_sessions(paths, ledger, ["killed", "late"]) == ()

    assert "late" in fold(read_events(paths)).runs[KILLED].steps["work"].sessions


async def test_no_ledger_and_no_session_is_a_repository_without_runs(paths: StatePaths) -> None:
    assert list_runs(paths) == []
    assert (await reopen(paths))[1] == []


@pytest.mark.parametrize("seed", range(8))
async def test_bytes_flipped_anywhere_never_lose_a_session_in_silence(paths: StatePaths, seed: int) -> None:
    await record_history(paths)
    chance, damage = random.Random(seed), bytearray(paths.ledger.read_bytes())
    for _ in range(chance.choice((1, 10, 100))):
        damage[chance.randrange(len(damage))] ^= 1 << chance.randrange(8)
    damage[18:20] = damage[18:20].replace(b"\x00", b"\x02")
    paths.ledger.write_bytes(damage)

    _, said = await reopen(paths)

    async with open_ledger(store_at(paths)) as ledger:
        adopted = await record_lost_sessions(paths, ledger, ["done", "killed"])  # what `shoal clean` does
    state = fold(read_events(paths))
    known = {name for run in state.runs.values() for step in run.steps.values() for name in step.sessions}
    assert known >= {"done", "killed"}, (said, adopted)
