"""Which run or session a word means."""

import pytest

from shoal.errors import BadInput
from shoal.model.events import Event, Recorded, RunStarted, SessionStarted
from shoal.store.fold import fold
from shoal.store.lookup import find_run, find_session
from shoal.store.run_state import State


def run_started(run: str, name: str = "adhoc") -> RunStarted:
    return RunStarted(run=run, name=name, base="b", wall="bubblewrap", workspace="overlay", owner=1)


def session_started(run: str, step: str, end: str, *, index: int = 0, attempt: int = 1) -> SessionStarted:
    return SessionStarted(
        run=run,
        step=step,
        session=f"{step}-{end}",
        index=index,
        branch=f"agent/{step}/{end}",
        base="b",
        strategy="overlay",
        workspace="/w",
        attempt=attempt,
    )


def told(*events: Event) -> State:
    return fold([Recorded(number, 0.0, event) for number, event in enumerate(events, start=1)])


TWO_RUNS = told(
    run_started("adhoc-1111"),
    session_started("adhoc-1111", "task-1", "aaaaaa"),
    session_started("adhoc-1111", "task-2", "bbbbbb"),
    run_started("adhoc-2222"),
    session_started("adhoc-2222", "task-1", "cccccc"),
    session_started("adhoc-2222", "task-10", "dddddd"),
    run_started("nightly-3333", "nightly"),
)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("task-1", "task-1-cccccc"),
        ("task-10", "task-10-dddddd"),
        ("task-2", "task-2-bbbbbb"),
        ("task-1-a", "task-1-aaaaaa"),
        ("aaaaaa", "task-1-aaaaaa"),
        ("agent/task-1/aaaaaa", "task-1-aaaaaa"),
        (None, "task-10-dddddd"),
    ],
)
def test_a_word_means_the_nearest_session_of_the_latest_run_that_it_fits(word: str | None, meant: str) -> None:
    assert find_session(TWO_RUNS, word).session == meant


def test_what_fits_several_sessions_of_one_run_is_refused() -> None:
    with pytest.raises(BadInput, match="'task' matches 2 sessions: task-1-cccccc, task-10-dddddd"):
        find_session(TWO_RUNS, "task")


def test_of_several_attempts_the_last_is_meant() -> None:
    state = told(
        run_started("r"),
        session_started("r", "fix", "aaaaaa"),
        session_started("r", "fix", "bbbbbb", attempt=2),
    )

    assert find_session(state, "fix").session == "fix-bbbbbb"
    assert find_session(state, "fix-aaaaaa").session == "fix-aaaaaa"


def test_the_workers_of_one_step_are_not_one() -> None:
    state = told(
        run_started("r"), session_started("r", "fix", "aaaaaa"), session_started("r", "fix", "bbbbbb", index=1)
    )

    with pytest.raises(BadInput, match="matches 2 sessions"):
        find_session(state, "fix")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("adhoc", "adhoc-2222"), ("nightly", "nightly-3333"), ("1111", "adhoc-1111"), ("n", "nightly-3333")],
)
def test_a_pipelines_name_means_its_latest_run(word: str, meant: str) -> None:
    assert find_run(TWO_RUNS, word).run == meant


def test_a_beginning_of_several_runs_is_refused() -> None:
    with pytest.raises(BadInput, match="'adhoc-' matches 2 runs"):
        find_run(TWO_RUNS, "adhoc-")


def test_a_long_ledger_does_not_flood_the_answer() -> None:
    state = told(
        run_started("r"), *(session_started("r", "fix", f"{number:06x}", index=number) for number in range(99))
    )

    with pytest.raises(BadInput, match="no session named 'zzz'; the latest are fix-") as refused:
        find_session(state, "zzz")

    assert str(refused.value).count("fix-") == 10
