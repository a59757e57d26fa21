"""A resumed run knows what had ended before, and nothing else."""

from collections.abc import Sequence

import pytest

from shoal.model.events import (
    Event,
    GateAnswered,
    GateOpened,
    Recorded,
    SessionDiscarded,
    SessionEnded,
    SessionStarted,
    StepEnded,
)
from shoal.model.gate import GateVerdict
from shoal.model.results import WorkerResult
from shoal.model.status import Rule, Status
from shoal.steps.history import AttemptKey, History, Visit, is_decided, read_history


def recorded(events: Sequence[Event]) -> list[Recorded]:
    return [Recorded(number, float(number), event) for number, event in enumerate(events, start=1)]


def started(session: str, index: int = 0, attempt: int = 1, visit: int = 1, origin: str = "") -> SessionStarted:
    return SessionStarted(
        run="r", step="s", session=session, index=index, branch=f"agent/s/{session}", base="b0", strategy="overlay",
        workspace="w", attempt=attempt, visit=visit, origin=origin,
    )  # fmt: skip


def ended(session: str, status: Status, index: int = 0, commit: str | None = None) -> SessionEnded:
    branch = f"agent/s/{session}" if commit else None
    result = WorkerResult(index=index, session=session, status=status, commit=commit, branch=branch)
    return SessionEnded(run="r", step="s", session=session, result=result)


def test_an_attempt_that_ended_by_itself_is_known_and_an_interrupted_one_is_salvage() -> None:
    history = read_history(
        recorded(
            [
                started("a"),
                ended("a", Status.FAILED),
                started("b", attempt=2),
                ended("b", Status.LOST, commit="c1"),
            ]
        )
    )

    first, second = (AttemptKey(Visit("s"), 0, attempt) for attempt in (1, 2))
    assert history.result(first) is not None
    assert history.result(second) is None
    salvage = history.salvage(second)
    assert salvage is not None
    assert (salvage.commit, salvage.origin) == ("c1", "b0")
    assert history.final(Visit("s"), 0, 2) is None


def test_a_session_that_continued_another_keeps_its_origin() -> None:
    history = read_history(recorded([started("a", origin="first"), ended("a", Status.LOST, commit="c2")]))

    salvage = history.salvage(AttemptKey(Visit("s"), 0, 1))
    assert salvage is not None
    assert salvage.origin == "first"


def test_rounds_of_a_loop_are_told_apart() -> None:
    history = read_history(
        recorded([started("a"), ended("a", Status.SUCCEEDED, commit="c"), started("b", visit=2)]),
    )

    assert history.final(history.enter("s"), 0, 1) is not None
    assert history.final(history.enter("s"), 0, 1) is None


def test_a_step_that_ended_alone_has_all_its_results_and_a_stopped_one_has_none() -> None:
    events: list[Event] = [
        started("a"),
        ended("a", Status.SUCCEEDED, commit="c"),
        started("b", 1),
        ended("b", Status.CANCELLED, 1),
    ]
    alone = StepEnded(run="r", step="s", status=Status.SUCCEEDED)
    stopped = StepEnded(run="r", step="s", status=Status.FAILED, is_stopped=True)

    assert set(read_history(recorded([*events, alone])).steps[Visit("s")]) == {0, 1}
    assert read_history(recorded([*events, stopped])).steps == {}


def test_a_discarded_session_and_its_step_count_no_more() -> None:
    events: list[Event] = [started("a"), ended("a", Status.FAILED), StepEnded(run="r", step="s", status=Status.FAILED)]

    history = read_history(recorded([*events, SessionDiscarded(run="r", step="s", session="a")]))

    assert history == History()


def test_a_gate_stays_answered_and_an_open_one_stays_asked() -> None:
    opened: list[Event] = [GateOpened(run="r", step=name, message="go?") for name in ("yes", "open")]
    answered = GateAnswered(run="r", step="yes", answer=GateVerdict.APPROVE, by="me")

    history = read_history(recorded([*opened, answered]))

    assert history.answers[Visit("yes")].verdict is GateVerdict.APPROVE
    assert history.questions == {Visit("open"): 2}


GOOD = WorkerResult(index=0, session="a", status=Status.SUCCEEDED)
BAD = WorkerResult(index=1, session="b", status=Status.FAILED)


@pytest.mark.parametrize(
    ("rule", "known", "decided"),
    [
        (Rule("gather"), [GOOD, None], False),
        (Rule("gather"), [BAD, None], True),
        (Rule("race"), [GOOD, None, None], True),
        (Rule("race"), [BAD, None], False),
        (Rule("quorum", 2), [GOOD, GOOD, None], True),
        (Rule("quorum", 2), [GOOD, BAD, None], False),
        (Rule("settled"), [GOOD, BAD, None], False),
        (Rule("settled"), [GOOD, BAD], True),
    ],
)
def test_what_has_ended_may_decide_a_step(rule: Rule, known: list[WorkerResult | None], decided: bool) -> None:
    assert is_decided(rule, known) is decided
