"""The bound of agents at once is exact, and never too small."""

import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from shoal.pipeline import graph_checks as bound
from shoal.pipeline.graph_checks import width

Graph = tuple[dict[str, list[str]], dict[str, int]]


@st.composite
def graphs(draw: st.DrawFn, most: int = 8) -> Graph:
    names = [str(number) for number in range(draw(st.integers(1, most)))]
    needs = {
        name: draw(st.lists(st.sampled_from(names[:index]), unique=True)) if index else []
        for index, name in enumerate(names)
    }
    return needs, {name: draw(st.integers(0, 4)) for name in names}


def heaviest(graph: Graph) -> int:
    """By trying all sets of steps."""
    needs, workers = graph
    before: dict[str, set[str]] = {}
    for name in needs:
        before[name] = set(needs[name]).union(*(before[need] for need in needs[name]))
    sets = itertools.chain.from_iterable(itertools.combinations(needs, size) for size in range(len(needs) + 1))
    apart = (one for one in sets if not any(name in before[other] for name in one for other in one))
    return max(sum(workers[name] for name in one) for one in apart)


@given(graphs())
def test_it_is_the_heaviest_set_of_steps_that_can_run_together(graph: Graph) -> None:
    assert width(*graph) == heaviest(graph)


@given(graphs())
def test_the_bound_by_chains_is_never_too_small(graph: Graph) -> None:
    needs, workers = graph
    chains = bound._chains(tuple(needs), needs)

    assert sorted(name for chain in chains for name in chain) == sorted(needs)
    assert sum(max(workers[name] for name in chain) for chain in chains) >= heaviest(graph)


def test_steps_of_different_waves_can_run_together() -> None:
    needs = {"a": [], "b": ["a"], "c": []}

    assert width(needs, {"a": 1, "b": 5, "c": 5}) == 10


def test_thousands_of_steps_are_bounded_at_once() -> None:
    row = [f"{wave}-{place}" for wave in range(10) for place in range(200)]
    needs = {name: [row[index - 200]] if index >= 200 else [] for index, name in enumerate(row)}
    dense = {str(index): [str(one) for one in range(max(0, index - 20), index - 10)] for index in range(300)}
    began = time.perf_counter()

    assert width(needs, dict.fromkeys(row, 3)) == 600
    assert width(dense, dict.fromkeys(dense, 10)) >= 100
    assert time.perf_counter() - began < 2
