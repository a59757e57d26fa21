"""Variations are assigned to workers in turn."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.model.plan import Variation, variation


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(0, 50))
def test_each_worker_takes_the_next_and_then_the_first_again(models: list[int], index: int) -> None:
    vary = [Variation(model=str(one)) for one in models]

    assert variation(vary, index) == vary[index % len(vary)]
    assert variation(vary, index) == variation(vary, index + len(vary))


def test_without_differences_all_are_alike() -> None:
    assert variation((), 7) == Variation()
