"""Choose the node for a session: by what it needs, by what is free, and by what is there already."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from shoal.model.nodes import Label


class Placement(StrEnum):
    """How sessions are placed: over all nodes evenly, or on as few as possible."""

    SPREAD = "spread"
    PACK = "pack"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """A node as far as placement is concerned."""

    name: str
    capacity: int
    running: int
    has_base: bool = False
    """Whether it has the commit that the session starts from."""

    @property
    def free(self) -> int:
        """How many more sessions it takes."""
        return self.capacity - self.running


def fits(labels: Mapping[str, Label], needs: Mapping[str, Label]) -> bool:
    """Return whether a node with *labels* is what a session *needs*; a number means at least that many."""
    return all(name in labels and _suffices(labels[name], wanted) for name, wanted in needs.items())


def choose_node(candidates: Iterable[NodeRoom], placement: Placement = Placement.SPREAD) -> str | None:
    """Choose the node for the next session; `None` if none has room.

    Where shares are equal, a node that has the base comes first: it starts the session sooner.
    """
    free = [candidate for candidate in candidates if candidate.free > 0]
    if not free:
        return None
    if placement is Placement.PACK:
        return min(free, key=lambda node: (node.free, not node.has_base, node.name)).name
    return min(free, key=lambda node: (node.running / node.capacity, not node.has_base, node.name)).name


def _suffices(label: Label, wanted: Label) -> bool:
    if isinstance(wanted, bool) or isinstance(label, bool):
        return label is wanted
    if isinstance(wanted, int | float) and isinstance(label, int | float):
        return label >= wanted
    return label == wanted
