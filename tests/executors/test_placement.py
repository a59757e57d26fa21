"""Where the next session goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.executors.placement import NodeRoom, Placement, choose_node, fits
from shoal.model.nodes import Label

ROOMS = st.lists(
    st.builds(
        NodeRoom,
        name=st.sampled_from("abcdef"),
        capacity=st.integers(0, 5),
        running=st.integers(0, 5),
        has_base=st.booleans(),
    ),
    unique_by=lambda room: room.name,
)


@given(ROOMS, st.sampled_from(Placement))
def test_a_session_goes_where_there_is_room_and_waits_only_if_there_is_none(
    rooms: list[NodeRoom], placement: Placement
) -> None:
    chosen = choose_node(rooms, placement)

    if chosen is None:
        assert all(room.free <= 0 for room in rooms)
    else:
        assert next(room for room in rooms if room.name == chosen).free > 0


def test_sessions_are_spread_by_their_share_or_packed() -> None:
    rooms = [NodeRoom(name="a", capacity=8, running=2), NodeRoom(name="b", capacity=2, running=1)]

    assert choose_node(rooms) == "a"
    assert choose_node(rooms, Placement.PACK) == "b"


def test_a_node_that_has_the_base_comes_first_where_shares_are_equal() -> None:
    rooms = [NodeRoom(name="a", capacity=2, running=1), NodeRoom(name="b", capacity=2, running=1, has_base=True)]

    assert choose_node(rooms) == "b"


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ({}, True),
        ({"gpu": True}, True),
        ({"gpu": False}, False),
        ({"gpu": 1}, False),
        ({"memory": 32}, True),
        ({"memory": 128}, False),
        ({"zone": "eu"}, True),
        ({"zone": "us"}, False),
        ({"tpu": True}, False),
    ],
)
def test_a_number_means_at_least_that_many(needs: dict[str, Label], expected: bool) -> None:
    assert fits({"gpu": True, "memory": 64, "zone": "eu"}, needs) is expected
