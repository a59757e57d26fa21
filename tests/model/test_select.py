"""Best of several: who wins and why, and what a judge's answer may look like."""

import json
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.select import (
    CRITERIA,
    Ranking,
    Select,
    SelectCandidate,
    contenders,
    parse_judgement,
    rank_results,
    score_of,
)

BY = st.sets(st.sampled_from(CRITERIA), min_size=1).map(tuple)
CANDIDATE = st.builds(
    SelectCandidate,
    index=st.just(0),
    is_good=st.booleans(),
    exit_code=st.none() | st.integers(0, 2),
    score=st.none() | st.sampled_from([-1.0, 0.0, 2.5]),
    contracts_met=st.none() | st.integers(0, 2),
    contracts=st.just(2),
    lines_changed=st.none() | st.integers(0, 3),
    has_changes=st.booleans(),
)
CANDIDATES = st.lists(CANDIDATE, max_size=5).map(
    lambda found: [
        SelectCandidate(
            index=index, is_good=one.is_good, exit_code=one.exit_code, score=one.score, contracts_met=one.contracts_met,
            contracts=one.contracts, lines_changed=one.lines_changed, has_changes=one.has_changes,
        )
        for index, one in enumerate(found)
    ]
)  # fmt: skip


def order(ranking: Ranking) -> list[int]:
    return [row.index for row in ranking.rows]


def passing(index: int, lines: int = 1, exit_code: int = 0, score: float | None = None) -> SelectCandidate:
    return SelectCandidate(index=index, exit_code=exit_code, lines_changed=lines, score=score, has_changes=lines > 0)


def test_tests_come_first_then_the_smallest_change() -> None:
    found = rank_results(
        ("diff_size", "command"), [passing(0, 9), passing(1, 1, exit_code=1), passing(2, 5), passing(3, 7)]
    )

    assert (found.winner, order(found)) == (2, [2, 3, 0, 1])
    assert found.rows[0].reasons == ("the command exited 0", "5 lines changed")
    assert found.rows[3].reasons == ("the command exited 1", "1 line changed")
    assert [row.is_eligible for row in found.rows] == [True, True, True, False]
    assert found.why == "the best by command, diff_size"


def test_a_higher_score_wins() -> None:
    found = rank_results(
        ("command",), [passing(0, score=1), passing(1, score=3), passing(2), passing(3, score=9, exit_code=1)]
    )

    assert (found.winner, order(found)) == (1, [1, 0, 2, 3])
    assert found.rows[0].reasons == ("the command exited 0", "score 3")


def test_who_changed_nothing_has_not_the_smallest_change() -> None:
    empty = SelectCandidate(index=3, lines_changed=0)
    found = rank_results(
        ("diff_size",), [passing(0, 0), passing(1, 40), SelectCandidate(index=2, is_good=False), empty]
    )

    assert (found.winner, order(found)) == (3, [3, 1, 0, 2])
    assert [row.reasons[-1] for row in found.rows] == [
        "0 lines changed",
        "40 lines changed",
        "it changed nothing, which ranks behind any size",
        "size unknown",
    ]


def test_of_equals_who_changed_nothing_is_the_last_unless_a_judge_says_otherwise() -> None:
    equals = [passing(0, 0), passing(1, 5), passing(2, 9)]

    found = rank_results(("command",), equals)

    assert (found.winner, order(found)) == (1, [1, 2, 0])
    assert found.rows[2].reasons == ("the command exited 0", "it changed nothing")
    assert found.why == "the first of 2 that are equal by command"
    assert rank_results(("command",), [passing(0, 0, score=2), passing(1, 5, score=1)]).winner == 0
    assert rank_results(("agent",), equals, [0, 1, 2]).winner == 0


def test_more_contracts_met_is_better() -> None:
    found = rank_results(
        ("contract",),
        [
            SelectCandidate(index=0, contracts_met=1, contracts=2),
            SelectCandidate(index=1, contracts_met=2, contracts=2),
        ],
    )

    assert found.winner == 1
    assert found.rows[1].reasons == ("1 of 2 contracts met",)


def test_a_judge_breaks_ties_only() -> None:
    candidates = [passing(0, 5), passing(1, 5), passing(2, 9)]
    by = ("command", "diff_size", "agent")

    assert contenders(by, candidates) == (0, 1)
    assert rank_results(by, candidates, [2, 1, 0]).winner == 1
    assert rank_results(by, candidates, [2, 1, 0]).why == "the judge's choice of 2"
    assert "place 2 by the judge" in rank_results(by, candidates, [2, 1, 0]).rows[0].reasons


def test_without_a_judgement_that_was_needed_nobody_wins() -> None:
    assert rank_results(("agent",), [passing(0), passing(1)], None).winner is None
    assert rank_results(("agent",), [passing(0), passing(1)], None).why == "the judge gave no order that can be read"
    assert rank_results(("agent",), [passing(0), SelectCandidate(index=1, is_good=False)], None).winner == 0


def test_ties_go_to_the_lower_index() -> None:
    found = rank_results(("command",), [passing(2), passing(0), passing(1)])

    assert (found.winner, order(found)) == (0, [0, 1, 2])
    assert found.why == "the first of 3 that are equal by command"


def test_nobody_wins_who_fails() -> None:
    found = rank_results(
        ("command",),
        [passing(0, exit_code=1), SelectCandidate(index=1), SelectCandidate(index=2, is_good=False, exit_code=0)],
    )

    assert found.winner is None
    assert "it did not succeed" in found.rows[[row.index for row in found.rows].index(2)].reasons
    assert rank_results(("command",), []).winner is None


def test_criteria_are_asked_in_their_own_order() -> None:
    assert Select(by=("agent", "diff_size", "command")).by == ("command", "diff_size", "agent")


@given(BY, CANDIDATES, st.data())
def test_any_ranking_is_whole_stable_and_fair(
    by: tuple[str, ...], candidates: list[SelectCandidate], data: st.DataObject
) -> None:
    indexes = [one.index for one in candidates]
    verdict = data.draw(st.none() | st.permutations(indexes))
    found = rank_results(by, candidates, verdict)

    assert sorted(order(found)) == indexes
    assert found == rank_results(by, data.draw(st.permutations(candidates)), verdict)
    if found.winner is not None:
        best = candidates[found.winner]
        assert found.winner == order(found)[0]
        assert best.is_good
        assert found.winner in contenders(by, candidates)
        assert "command" not in by or best.exit_code == 0
    good = [row.is_eligible for row in found.rows]
    assert good == sorted(good, reverse=True)
    if "agent" not in by:
        assert (found.winner is not None) == any(good)


@given(CANDIDATES)
def test_no_passing_result_loses_to_a_larger_one(candidates: list[SelectCandidate]) -> None:
    winner = rank_results(
        ("command", "diff_size"), [passing(one.index, one.lines_changed or 0) for one in candidates]
    ).winner

    if winner is not None:
        sizes = [one.lines_changed for one in candidates if one.lines_changed]
        assert not sizes or candidates[winner].lines_changed == min(sizes)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('{"ranking": [2, 0, 1]}', [2, 0, 1]),
        ('Well.\n```json\n{"winner": 2, "why": {"a": "{"}}\n```', [2, 0, 1]),
        ('{"ranking": [1]}\nDone.', None),
        ('{"ranking": [1]}', [1, 0, 2]),
        ('{"ranking": [1, 2], "winner": 1}', [1, 2, 0]),
        ('{"winner": 0} no: {"winner": 1}', [1, 0, 2]),
        ('{ {"winner": 1}', [1, 0, 2]),
        ("", None),
        ("2", None),
        ("winner: 2", None),
        ('{"winner": 3}', None),
        ('{"winner": -1}', None),
        ('{"winner": "2"}', None),
        ('{"winner": true}', None),
        ('{"winner": 1.0}', None),
        ('{"winner": null}', None),
        ('{"ranking": []}', None),
        ('{"ranking": [1, 1]}', None),
        ('{"ranking": [0, 7]}', None),
        ('{"ranking": [0, [1]]}', None),
        ('{"ranking": {"0": 1}}', None),
        ('{"ranking": [0, 1], "winner": 1}', None),
        ('{"winner": 1} {"note": "and then something else"}', None),
        ('{"a": {"winner": 1}}', None),
        ('{"a":' * 5000, None),
        ("{" * 100_000, None),
    ],
)  # fmt: skip
def test_a_judge_is_understood_or_not_at_all(output: str, expected: list[int] | None) -> None:
    assert parse_judgement(output, [0, 1, 2]) == expected


@given(st.text(), st.sets(st.integers(0, 9)))
def test_any_answer_is_an_order_or_nothing(output: str, candidates: Collection[int]) -> None:
    found = parse_judgement(output, candidates)

    assert found is None or sorted(found) == sorted(candidates)


@given(st.text(alphabet=st.characters(exclude_characters="{}")), st.permutations(range(4)))
def test_an_order_is_read_whatever_is_said_before(prose: str, ranking: Sequence[int]) -> None:
    assert parse_judgement(f"{prose}{json.dumps({'ranking': ranking})}", range(4)) == ranking


@pytest.mark.parametrize(
    ("output", "expected"),
    [("passed\n3.5\n", 3.5), ("-2", -2), ("", None), ("ok", None), ("1\nok", None), ("nan", None), ("inf", None), ("9" * 2000, None)],
)  # fmt: skip
def test_a_score_is_the_last_line_if_that_is_a_number(output: str, expected: float | None) -> None:
    assert score_of(output) == expected
