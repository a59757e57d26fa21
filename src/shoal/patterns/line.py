"""Who waits for a slot, in the order in which they are served."""

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Waits(Protocol):
    """Somebody in a line: the higher priority first, and runs take turns within a priority."""

    priority: float
    run: str


W = TypeVar("W", bound=Waits)


class Line(Generic[W]):
    """A line that can be left from any place in constant time."""

    def __init__(self) -> None:
        self._runs: dict[float, OrderedDict[str, OrderedDict[W, None]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def first(self) -> W:
        """Give who is next, without taking it out."""
        runs = self._runs[max(self._runs)]
        return next(iter(next(iter(runs.values()))))

    def add(self, waiter: W) -> None:
        """Put *waiter* behind those of its own run."""
        self._runs.setdefault(waiter.priority, OrderedDict()).setdefault(waiter.run, OrderedDict())[waiter] = None
        self._length += 1

    def remove(self, waiter: W, *, served: bool) -> None:
        """Take *waiter* out if it is here; when it was *served*, the turn is its run's neighbour's."""
        runs = self._runs.get(waiter.priority, OrderedDict())
        if waiter not in runs.get(waiter.run, ()):
            return
        del runs[waiter.run][waiter]
        self._length -= 1
        if not runs[waiter.run]:
            del runs[waiter.run]
        elif served:
            runs.move_to_end(waiter.run)
        if not runs:
            del self._runs[waiter.priority]
