"""What waits for what: the same questions for tasks of a program and for steps of a file."""

import graphlib
from collections.abc import Collection, Iterator, Mapping

MOST_CYCLES = 20


def drawn_cycle(needs: Mapping[str, Collection[str]]) -> str | None:
    """Draw the first circle of names that wait for each other (`a → b → a`: a needs b), or give `None`."""
    return next((" → ".join(one) for one in cycles(needs)), None)


def cycles(needs: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Give circles of names that wait for each other, no name in two of them; the first name of each is its last."""
    left = {name: list(wanted) for name, wanted in needs.items()}
    for _ in range(MOST_CYCLES):
        try:
            return graphlib.TopologicalSorter(left).prepare()
        except graphlib.CycleError as error:
            # graphlib lists each name before the one that needs it; to a reader "needs" points the other way.
            cycle = list(reversed(error.args[1]))
        yield cycle
        left = {name: [one for one in wanted if one not in cycle] for name, wanted in left.items() if name not in cycle}
