"""The texts of a step that may contain placeholders, and their positions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.pipeline.problems import Position
from shoal.pipeline.templates.template import BadTemplate, uses
from shoal.pipeline.tree import Fields, Items, Node, Scalar, entries, find, items, text

if TYPE_CHECKING:  # Jinja takes a moment to import, and most documents need no template
    from shoal.pipeline.templates.syntax import NameUse

PLACES = (
    ("prompt",),
    ("exec", "source"),
    ("command",),
    ("env",),
    ("gate",),
    ("gate", "message"),
    ("input",),
    ("select", "command"),
    ("select", "criteria"),
    ("vary",),
)
UNTIL = ("loop", "until")
CONDITIONS = (("if",), UNTIL)


@dataclass(frozen=True, slots=True)
class Text:
    """One text, and where it stands; a condition is an expression as a whole."""

    text: str
    at: Position
    is_condition: bool = False
    inside: Position | None = None
    is_until: bool = False
    """Whether it is the condition that is evaluated after a round."""

    @classmethod
    def of(cls, node: Scalar, *, is_condition: bool = False, is_until: bool = False) -> "Text":
        """Return the text that *node* is."""
        return cls(str(node.value), node.at, is_condition, node.inside, is_until)

    def place(self, at: Position | None) -> Position:
        """Return the position in the file of *at* in the text, or of the text if that is unknown."""
        if at is None or self.inside is None:
            return self.at
        return Position(self.inside.line + at.line - 1, self.inside.column + at.column - 1)

    def uses(self) -> "tuple[NameUse, ...]":
        """Return the names that it uses, none where it cannot be read."""
        try:
            return uses(self.text, is_condition=self.is_condition)
        except BadTemplate:
            return ()


def texts(step: Node) -> Iterator[Text]:
    """Yield the texts of *step*."""
    for place in PLACES:
        yield from _texts(find(step, *place))
    for contract in (*items(find(step, "contracts")), find(step, "contract")):
        for name in ("command", "path", "criteria"):
            yield from _texts(find(contract, name))
    for artifact in items(find(step, "output_artifacts")):
        yield from _texts(find(artifact, "path") if isinstance(artifact, Fields) else artifact)
    for place in CONDITIONS:
        node = find(step, *place)
        if isinstance(node, Scalar) and isinstance(node.value, str):
            yield Text.of(node, is_condition=True, is_until=place == UNTIL)


def persona_texts(step: Node, tree: Node, files: Mapping[str, str]) -> Iterator[Text]:
    """Yield the system prompts of all agents of *step*, its reviewers and judge; *files* are the contents of files."""
    for holder in (step, find(step, "select"), find(step, "contract"), *items(find(step, "contracts"))):
        label = text(find(holder, "persona")) or ""
        persona = find(tree, "personas", label)
        own, beside = find(persona, "system_prompt"), find(persona, "system_prompt_file")
        if own is not None:
            yield from _texts(own)
        elif beside is not None and label in files:
            yield Text(files[label], beside.at)


def _texts(node: Node | None) -> Iterator[Text]:
    match node:
        case Scalar(value=str()):
            yield Text.of(node)
        case Items():
            for item in node.items:
                yield from _texts(item)
        case Fields():
            for name, entry in entries(node).items():
                if name not in ("from", "message"):
                    yield from _texts(entry.value)
        case _:
            return
