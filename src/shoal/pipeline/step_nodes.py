"""A step in the tree of a document: its name and its needs, however they were spelt."""

from shoal.pipeline.tree import Fields, Node, Scalar, find, items, text

NEEDS = ("needs", "dependencies", "depends_on")


def title(step: Fields) -> str | None:
    """Return the step's name."""
    return text(given(step, "name") or given(step, "id"))


def needed_steps(step: Fields) -> tuple[Node, ...]:
    """Return the nodes of the names that it needs."""
    named = next((node for name in NEEDS if (node := given(step, name)) is not None), None)
    return (named,) if isinstance(named, Scalar) else tuple(items(named))


def given(node: Node | None, name: str) -> Node | None:
    """Return the value under *name*, unless it is not there or is null."""
    found = find(node, name)
    return None if isinstance(found, Scalar) and found.value is None else found
