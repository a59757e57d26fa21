"""What is known of an account's rate limit, under any sequence of events, with a clock of its own."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gateway.account import FIRST_LIMIT, HIGHEST_LIMIT, AccountState, is_for_good, read_retry_after

NOW = datetime(2026, 11, 19, 12, 0, 0, tzinfo=UTC)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "answer", "refuse", "end", "leave", "pass"]),
        st.sampled_from(["p1", "p2"]),
        st.sampled_from(["r1", "r2", "r3"]),
        st.floats(0, 5),
    ),
    max_size=80,
)


@given(EVENTS)
def test_any_sequence_keeps_the_limit_and_forgets_nobody(events: list[tuple[str, str, str, float]]) -> None:
    state, now = AccountState(), 1000.0
    held: list[tuple[str, str, float]] = []
    for event, process, run, amount in events:
        mine = next((entry for entry in held if entry[:2] == (process, run)), None)
        if event == "ask":
            before = state.under_way
            if state.ask(now, process, run) == 0:
                assert now >= state.open_at
                assert before < state.limit or state.is_probing
                held.append((process, run, now))
        elif event == "pass":
            now += amount
        elif event == "leave":
            state.keep_only({"p1", "p2"} - {process})
            held = [entry for entry in held if entry[0] != process]
        elif mine and event == "answer":
            state.note_answer(now, mine[2])
        elif mine and event == "refuse":
            state.note_refusal(now, mine[2], amount)
            assert state.open_at >= now + amount
        elif mine:
            held.remove(mine)
            state.end(process, run)
        assert state.under_way == len(held)
        assert 1 <= state.limit <= HIGHEST_LIMIT
        assert AccountState.of(json.loads(json.dumps(state.document()))).document() == state.document()
    for process, run, _ in held:
        state.end(process, run)
    now = max(now, state.open_at) + 60
    assert state.ask(now, "p1", "r1") == 0, "whatever happened, it goes on"


def test_requests_that_were_under_way_together_are_one_refusal() -> None:
    state = AccountState()
    for _ in range(40):
        assert state.ask(0, "p", "r") == 0
    state.note_refusal(1, 0, None)
    assert state.limit == 20
    for _ in range(4):
        state.note_refusal(1, 0, None)

    assert state.limit == pytest.approx(20 * 0.9**4)
    assert state.refusals == 1
    assert state.open_at == 1.5
    assert FIRST_LIMIT > 40


def test_the_limit_recovers_the_faster_the_longer_it_is_calm() -> None:
    limits = []
    for calm in (1, 20, 100):
        state = AccountState(limit=4, cut_at=0)
        for _ in range(40):
            state.note_answer(calm, calm)
        limits.append(state.limit)

    assert limits == pytest.approx([6, 9.8, 44], abs=0.1)


def test_after_a_refusal_a_single_request_tries_first() -> None:
    state = AccountState()
    state.ask(0, "p", "long")
    state.ask(0, "p", "r")
    state.note_refusal(1, 0, 3)
    state.end("p", "r")

    assert state.ask(2, "p", "r") == 2, "it must wait as long as the provider said"
    assert state.ask(4, "p", "r") == 0, "also while an older one is under way"
    assert state.ask(4, "p", "r") > 0
    state.note_answer(5, 0)
    assert state.is_probing, "an older answer says nothing about now"
    state.note_answer(5, 4)
    state.limit = 5
    assert state.ask(4, "p", "r") == 0


def test_each_refused_try_doubles_the_pause_up_to_a_minute() -> None:
    state, now, pauses = AccountState(), 0.0, []
    for _ in range(12):
        assert state.ask(now, "p", "r") == 0
        state.note_refusal(now, now, None)
        state.end("p", "r")
        pauses.append(state.open_at - now)
        now = state.open_at

    assert pauses[:4] == [0.5, 1, 2, 4]
    assert pauses[-1] == 60


def test_runs_take_turns_whatever_they_want() -> None:
    """A run of a hundred agents does not keep a run of one waiting."""
    state, under_way, served = AccountState(limit=2), [], []
    for tick in range(100):
        for name in ("big", "big", "big", "small"):
            if state.ask(tick / 10, f"of-{name}", name) == 0:
                under_way.append(name)
                served.append(name)
        ended = under_way.pop(0)
        state.end(f"of-{ended}", ended)

    assert 0.4 < served.count("small") / len(served) < 0.6


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {}, None),
        ({"retry-after": "7"}, {}, 7),
        ({"retry-after": "0.25"}, {}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "2"}, {}, 1.5),
        ({"retry-after": "Thu, 19 Nov 2026 12:00:30 GMT"}, {}, 30),
        ({"retry-after": "Thu, 19 Nov 2026 11:00:00 GMT"}, {}, 0),
        ({"retry-after": "soon"}, {}, None),
        ({"retry-after": "-3"}, {}, None),
        ({"retry-after": "nan"}, {}, None),
        ({"retry-after": "inf"}, {}, 86400),
        ({"retry-after": "1e99"}, {}, 86400),
        ({}, {"error": {"details": [1, {"@type": "x"}, {"retryDelay": "3.5s"}]}}, 3.5),
        ({}, {"error": {"details": "x"}}, None),
        ({}, {"error": "x"}, None),
    ],
)
def test_a_refusal_says_how_long_to_wait(
    headers: dict[str, str], body: dict[str, object], expected: float | None
) -> None:
    assert read_retry_after(headers, body, NOW) == expected


def test_no_waiting_helps_an_account_without_credit() -> None:
    assert is_for_good({}, {"error": {"code": "insufficient_quota"}})
    assert is_for_good({"x-should-retry": "false"}, {})
    assert not is_for_good({}, {"error": {"code": "rate_limit_exceeded"}})
    assert not is_for_good({}, {"error": "x"})
