"""What waits for what: the same questions for tasks of a program and for steps of a file."""

import graphlib
from collections.abc import Collection, Mapping


def drawn_cycle(needs: Mapping[str, Collection[str]]) -> str | None:
    """Draw the first circle of names that wait for each other (`a → b → a`: a needs b), or give `None`."""
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        # graphlib lists each name before the one that needs it; to a reader "needs" points the other way.
        return " → ".join(reversed(error.args[1]))
    return None
