"""Limits describe themselves, and refuse invalid values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.model.limits import BREACHES, RANGES, SPELLINGS, BadLimit, ResourceLimits


def test_the_defaults_are_the_seed_s() -> None:
    limits = ResourceLimits()

    assert (limits.memory_mb, limits.cpu_percent, limits.time_seconds, limits.disk_mb) == (1024, 50, 3600, 5120)
    assert limits.pids == 1024
    assert limits.memory_bytes == 2**30
    assert limits.disk_bytes == 5 * 2**30
    assert BREACHES == ("memory", "time", "disk", "pids")


def test_who_names_no_limits_has_a_fair_share_of_cpu() -> None:
    assert ResourceLimits.default() == ResourceLimits(cpu_percent=None)


def test_the_seed_s_names_are_accepted() -> None:
    given_ = {"max_memory": 512, "max_cpu_percent": 25, "max_execution_time": 60, "max_disk_usage": 100}

    limits = ResourceLimits.of(given_)

    assert limits == ResourceLimits(memory_mb=512, cpu_percent=25, time_seconds=60, disk_mb=100)
    assert ResourceLimits.of({"pids": 9, "memory_mb": None}) == ResourceLimits(pids=9, memory_mb=None)
    assert ResourceLimits.of({}) == ResourceLimits()


@pytest.mark.parametrize("key", [*RANGES, *SPELLINGS])
@pytest.mark.parametrize(
    "value",
    [0, -1, -0.0, math.nan, math.inf, -math.inf, True, False, "512", [], {}, 10**400, 10**5000, 1e300],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_meant_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(BadLimit, match=f"^limit `{key}` must be a .*number from .* to .*, or null.*, not .") as raised:
        ResourceLimits.of({key: value})

    assert raised.value.key == key
    assert isinstance(raised.value, BadInput)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory_mb", 15.9),
        ("memory_mb", 2**30 + 1),
        ("cpu_percent", 102401),
        ("pids", 1),
        ("pids", 12.5),
        ("pids", 2**23),
    ],
)
def test_absurd_values_are_refused(key: str, value: float) -> None:
    with pytest.raises(BadLimit, match=key):
        ResourceLimits(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("memroy_mb", "did you mean `memory_mb`"),
        ("max_memmory", "did you mean `max_memory`"),
        ("zebra", "known: cpu_percent, disk, disk_mb, memory_mb, pids, time_seconds"),
        ("disc_mb", "did you mean `disk_mb`"),
        ("a\x1b[2J", r"`a\\x1b\[2J` is not known"),
    ],
)
def test_a_misspelt_key_is_told_with_the_nearest(key: str, words: str) -> None:
    with pytest.raises(BadLimit, match=words):
        ResourceLimits.of({key: 1})


def test_one_limit_by_two_names_is_refused() -> None:
    with pytest.raises(BadLimit, match="`max_memory` is given twice: it is the same as `memory_mb`"):
        ResourceLimits.of({"memory_mb": 100, "max_memory": 200})


def test_the_disk_is_polled_unless_it_is_to_be_exact() -> None:
    assert ResourceLimits().disk == "polled"
    assert not ResourceLimits.of({"disk": "polled", "disk_mb": None}).is_exact
    assert ResourceLimits.of({"disk": "exact", "max_disk_usage": 200}) == ResourceLimits(disk_mb=200, disk="exact")
    assert ResourceLimits.of({"disk": "exact"}).disk_bytes == 5 * 2**30


@pytest.mark.parametrize("way", ["exac", "", None, True, 200, [], {}])
def test_the_disk_is_held_in_one_of_two_ways(way: object) -> None:
    with pytest.raises(BadLimit, match=r"^limit `disk` must be `polled` or `exact`, not ."):
        ResourceLimits.of({"disk": way})


def test_an_exact_disk_needs_a_size() -> None:
    with pytest.raises(BadLimit, match="limit `disk` is exact, which needs a size: give `disk_mb` too"):
        ResourceLimits.of({"disk": "exact", "disk_mb": None})


@given(st.sampled_from(sorted(RANGES)), st.floats() | st.integers())
def test_a_value_is_taken_exactly_when_it_lies_in_its_range(key: str, value: float) -> None:
    allowed = RANGES[key]
    fits = allowed.lowest <= value <= allowed.highest and (isinstance(value, int) or not allowed.is_whole)

    try:
        taken = getattr(ResourceLimits.of({key: value}), key) == value
    except BadLimit:
        taken = False

    assert taken == fits
