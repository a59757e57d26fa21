"""State is the fold of the events, in whatever order and however often they come."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadInput, UnknownName
from shoal.model.events import (
    AgentEnded,
    AgentStarted,
    Event,
    Output,
    Recorded,
    RunEnded,
    RunStarted,
    SessionEnded,
    SessionStarted,
    StepEnded,
    StepStarted,
)
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.store.fold import fold, latest, report
from shoal.store.lookup import find_run, find_session
from shoal.store.run_state import State

GOOD = Status.SUCCEEDED


def run_started(run: str, owner: int = 1) -> RunStarted:
    return RunStarted(run=run, name="n", base="b", wall="bubblewrap", workspace="overlay", owner=owner, notes=("x",))


def session_started(run: str, session: str, index: int = 0, attempt: int = 1) -> SessionStarted:
    return SessionStarted(
        run=run,
        step="a",
        session=session,
        index=index,
        branch=f"agent/a/{session}",
        base="b",
        strategy="overlay",
        workspace=f"/w/{index}",
        attempt=attempt,
    )


def session_ended(run: str, session: str, status: Status, index: int = 0) -> SessionEnded:
    result = WorkerResult(index=index, session=session, status=status)
    return SessionEnded(run=run, step="a", session=session, result=result)


def step_started(run: str, workers: int = 1) -> StepStarted:
    return StepStarted(run=run, step="a", workers=workers, on_failure="any")


def story(run: str, ends: Sequence[Status]) -> list[Event]:
    """A whole run of one step with a worker for each end."""
    told: list[Event] = [run_started(run), step_started(run, len(ends))]
    for index, status in enumerate(ends):
        name = f"{run}-{index}"
        told += [session_started(run, name, index), AgentStarted(run=run, session=name, pid=1)]
        told += [AgentEnded(run=run, session=name, exit_code=0, signal=None), session_ended(run, name, status, index)]
    return [*told, StepEnded(run=run, step="a", status=GOOD), RunEnded(run=run, status=GOOD, duration_seconds=2.0)]


def numbered(events: Sequence[Event]) -> list[Recorded]:
    return [Recorded(seq, 100.0 + seq, event) for seq, event in enumerate(events, start=1)]


def folded(*events: Event) -> State:
    return fold(numbered(events))


ends = st.lists(st.sampled_from([one for one in Status if one.is_ended]), max_size=4)


@given(st.data(), st.lists(ends, min_size=1, max_size=4))
def test_interleaved_runs_come_out_whole(data: st.DataObject, runs: list[list[Status]]) -> None:
    """Several coordinators write one ledger: their stories mix, each in its own order, some facts twice."""
    stories = [story(f"run-{number}", statuses) for number, statuses in enumerate(runs)]
    mixed: list[Event] = []
    while any(stories):
        chosen = data.draw(st.sampled_from([one for one in stories if one]))
        mixed += [chosen.pop(0)] * data.draw(st.integers(1, 2))

    state = fold(data.draw(st.permutations(numbered(mixed))))

    assert set(state.runs) == {f"run-{number}" for number in range(len(runs))}
    for number, statuses in enumerate(runs):
        told = report(state.runs[f"run-{number}"])
        assert told.status is GOOD
        assert [one.status for one in told.steps[0].worker_results] == statuses
        assert [one.index for one in told.steps[0].worker_results] == list(range(len(statuses)))


@given(st.data(), ends)
def test_any_part_of_a_story_can_be_told(data: st.DataObject, statuses: list[Status]) -> None:
    told = numbered([*story("r", statuses), Output(run="lost", session="lost", stream="out", text="")])

    state = fold(data.draw(st.lists(st.sampled_from(told))))

    for run in state.runs.values():
        assert report(run).run == "r"


def test_a_run_on_its_way_shows_how_far_it_is() -> None:
    state = folded(run_started("r"), step_started("r", 2), session_started("r", "s1", 1), session_started("r", "s0", 0))

    told = report(state.runs["r"])

    assert (told.status, told.steps[0].status, told.wall, told.notes) == ("running", "running", "bubblewrap", ("x",))
    assert [(one.session, one.status, one.workspace) for one in told.steps[0].worker_results] == [
        ("s0", "running", "/w/0"),
        ("s1", "running", "/w/1"),
    ]
    assert state.runs["r"].steps["a"].sessions["s0"].branch == "agent/a/s0"
    assert state.runs["r"].started_at == 101.0


def test_a_step_none_of_whose_workers_has_begun_is_pending() -> None:
    state = folded(run_started("r"), step_started("r", 2))

    assert report(state.runs["r"]).steps[0].status == "pending"


def test_a_retried_worker_is_reported_by_its_last_attempt() -> None:
    state = folded(
        session_started("r", "first"),
        session_ended("r", "first", Status.FAILED),
        session_started("r", "second", attempt=2),
    )

    assert list(state.runs["r"].steps["a"].sessions) == ["first", "second"]
    assert [(one.session, one.attempts) for one in report(state.runs["r"]).steps[0].worker_results] == [("second", 2)]


def test_a_resumed_run_runs_again_under_its_new_owner() -> None:
    state = folded(*story("r", [Status.LOST]), run_started("r", owner=2))

    assert state.runs["r"].status is Status.RUNNING
    assert state.runs["r"].owner == 2
    assert state.runs["r"].started_at == 101.0


def test_a_skipped_step_needs_no_start() -> None:
    state = folded(run_started("r"), StepEnded(run="r", step="b", status=Status.SKIPPED))

    assert state.runs["r"].steps["b"].status is Status.SKIPPED


def test_the_latest_is_meant_unless_a_name_is_given() -> None:
    state = folded(*story("one-1", [GOOD]), *story("one-2", [GOOD, GOOD]))

    assert find_run(state) is latest(state) is state.runs["one-2"]
    assert find_session(state).session == "one-2-1"
    assert find_run(state, "one-1").run == "one-1"
    assert find_session(state, "one-1").session == "one-1-0"


def test_a_whole_name_is_not_ambiguous_and_a_part_may_be() -> None:
    state = folded(run_started("a"), run_started("ab"), run_started("abc"))

    assert find_run(state, "a").run == "a"
    with pytest.raises(UnknownName, match="no run named 'x'"):
        find_run(state, "x")
    with pytest.raises(BadInput, match="'' matches 3 runs: a, ab, abc"):
        find_run(state, "")


def test_where_there_is_none_it_says_so() -> None:
    assert latest(fold([])) is None
    with pytest.raises(BadInput, match="no run yet"):
        find_run(fold([]))
    with pytest.raises(BadInput, match="no session yet"):
        find_session(folded(run_started("r")), "x")


def test_who_began_and_has_no_end_is_not_told_as_one_that_never_began() -> None:
    """A second interrupt ends sessions at once, and the step's end knows no result of them."""
    never = tuple(WorkerResult(index=one, session="", status=Status.CANCELLED, attempts=0) for one in range(2))
    ended = StepEnded(run="r", step="a", status=Status.CANCELLED, unstarted=never)

    told = report(folded(run_started("r"), step_started("r", 2), session_started("r", "s", 0), ended).runs["r"])

    assert [one.status for one in told.steps[0].worker_results] == [Status.RUNNING, Status.CANCELLED]
