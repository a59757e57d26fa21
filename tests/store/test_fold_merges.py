"""Merges, deliveries and overlaps are part of a run's state, and survive writing."""

from shoal.model.events import Event, OverlapSeen, Recorded, RunEnded, RunStarted
from shoal.model.merge import (
    Conflict,
    ConflictKind,
    Delivery,
    DeliveryRecorded,
    DeliveryStatus,
    MergeEnded,
    MergeIntended,
    MergeRecorded,
    MergeReport,
    MergeResult,
    MergeStatus,
    Overlap,
    Strategy,
)
from shoal.model.status import Status
from shoal.store.codec import decode, encode
from shoal.store.fold import fold, report
from shoal.store.run_state import RunState

STARTED = RunStarted(run="r", name="n", base="b", wall="none", workspace="overlay", owner=1)
CLASH = Conflict(kind=ConflictKind.CONTENT, paths=("\udcff",), partners=("s0",))
OVERLAP = Overlap(one="s0", other="s1", paths=("f",), files=1, conflicts=(CLASH,))
GOOD = MergeResult(session="s0", status=MergeStatus.MERGED, source="c0", commit="m0")
BAD = MergeResult(session="s1", status=MergeStatus.CONFLICTS, source="c1", conflicts=(CLASH,))
INTENDED = MergeIntended(run="r", old="", new="m0", start="b", strategy=Strategy.AUTO, results=(GOOD,))
WHOLE = MergeReport(
    run="r",
    strategy=Strategy.AUTO,
    branch="shoal/r",
    start="b",
    commit="m0",
    results=(GOOD, BAD),
    delivery=Delivery(into="main", status=DeliveryStatus.DELIVERED, old="b", new="m0"),
)


def state_of(*events: Event) -> RunState:
    """Fold what was read back from what was written."""
    read = [decode(type(event).__name__, encode(event)) for event in (STARTED, *events)]
    return fold(Recorded(number, 1.0, event) for number, event in enumerate(read)).runs["r"]  # type: ignore[arg-type]


def test_the_last_word_of_a_merge_says_also_what_is_left() -> None:
    state = state_of(INTENDED, MergeRecorded(run="r", new="m0"), MergeEnded(run="r", report=WHOLE))

    assert state.merge == WHOLE
    assert report(state).merge == WHOLE


def test_a_merge_that_was_killed_before_its_last_word_is_known_by_its_record() -> None:
    state = state_of(INTENDED, MergeRecorded(run="r", new="m0"))
    pending = state_of(INTENDED)
    other = state_of(INTENDED, MergeRecorded(run="r", new="m1"))

    assert state.merge is not None
    assert (state.merge.commit, state.merge.results, state.merge.branch) == ("m0", (GOOD,), "shoal/r")
    assert (pending.merge, other.merge) == (None, None)


def test_the_last_delivery_into_each_branch_is_known() -> None:
    steps = [("main", "b", "m0"), ("other", "b", "m0"), ("main", "m0", "m1")]
    made = [DeliveryRecorded(run="r", into=into, old=old, new=new) for into, old, new in steps]

    state = state_of(*made, RunEnded(run="r", status=Status.SUCCEEDED, duration_seconds=1.0))

    assert {name: one.new for name, one in state.deliveries.items()} == {"main": "m1", "other": "m0"}
    assert state.status is Status.SUCCEEDED


def test_a_pair_counts_once_however_often_it_is_told() -> None:
    seen = OverlapSeen(run="r", overlap=OVERLAP)

    assert state_of(seen, seen).overlaps == report(state_of(seen)).overlaps == (OVERLAP,)
