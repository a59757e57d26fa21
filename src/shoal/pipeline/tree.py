"""A YAML document as frozen nodes that know their positions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.pipeline.problems import Position

Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value, and its original text."""

    at: Position
    text: str
    value: Plain
    inside: Position | None = None
    """Where its first character is, if its lines are those of the file: on one line, or in a `|` block."""

    height = 0


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    at: Position
    items: tuple["Node", ...]
    height: int


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A key with its place, and its value."""

    at: Position
    value: "Node"


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping; its keys are always text."""

    at: Position
    entries: Mapping[str, TreeEntry]
    height: int


Node = Scalar | Items | Fields
Path = Sequence[str | int]


def plain(node: Node) -> object:
    """Return the node as plain dicts, lists and values."""
    match node:
        case Scalar():
            return node.value
        case Items():
            return [plain(item) for item in node.items]
        case Fields():
            return {name: plain(entry.value) for name, entry in node.entries.items()}


def find(node: Node | None, *path: str | int) -> Node | None:
    """Follow *path* down, or return `None` if it ends early."""
    for part in path:
        node = _child(node, part)
    return node


def position(tree: Node, path: Path) -> Position:
    """Return the position of the deepest existing part of *path*."""
    node: Node | None = tree
    at = tree.at
    for part in path:
        node = _child(node, part)
        if node is None:
            break
        at = node.at
    return at


def key_position(tree: Node, path: Path) -> Position:
    """Return the position of the last key of *path*, not of its value."""
    parent = find(tree, *path[:-1])
    if isinstance(parent, Fields) and path[-1] in parent.entries:
        return parent.entries[str(path[-1])].at
    return position(tree, path)


def text(node: Node | None) -> str | None:
    """Return the text of a node that is one."""
    return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None


def entries(node: Node | None) -> Mapping[str, TreeEntry]:
    """Return the entries of a mapping, none of anything else."""
    return node.entries if isinstance(node, Fields) else {}


def items(node: Node | None) -> Iterator[Node]:
    """Go through the items of a list, none of anything else."""
    yield from node.items if isinstance(node, Items) else ()


def _child(node: Node | None, part: str | int) -> Node | None:
    match node, part:
        case Fields(), str() if part in node.entries:
            return node.entries[part].value
        case Items(), int() if 0 <= part < len(node.items):
            return node.items[part]
        case _:
            return None


NEEDS = ("needs", "dependencies", "depends_on")


def title(step: Fields) -> str | None:
    """Return the step's name."""
    return text(value_of(step, "name") or value_of(step, "id"))


def list_needs(step: Fields) -> tuple[Node, ...]:
    """Return the nodes of the names that it needs."""
    named = next((node for name in NEEDS if (node := value_of(step, name)) is not None), None)
    return (named,) if isinstance(named, Scalar) else tuple(items(named))


def value_of(node: Node | None, name: str) -> Node | None:
    """Return the value under *name*, unless it is not there or is null."""
    found = find(node, name)
    return None if isinstance(found, Scalar) and found.value is None else found
