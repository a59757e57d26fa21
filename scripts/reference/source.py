"""What the code says about itself: the docstrings of classes, of their fields, and tables of Markdown."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def sentence(text: str | None) -> str:
    """Return a docstring on one line."""
    return " ".join((text or "").split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; there is none without rows."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    if lines:
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        yield from lines
        yield ""


def field_docs(kind: type) -> dict[str, str]:
    """Return what is written below each field of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, after in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
                found[field.target.id] = sentence(ast.literal_eval(after.value))
    return found


def type_name(annotation: Any) -> str:  # noqa: ANN401 - any annotation
    """Write a type as a person would."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b[a-z_]+(\.[a-z_]+)*\.(?=[A-Za-z_])", "", text)  # without the modules


def field_rows(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the type and the meaning of each field."""
    docs = field_docs(kind)
    for field in dataclasses.fields(kind):
        if field.repr or field.name in docs:
            yield f"`{field.name}`", f"`{type_name(field.type)}`", docs.get(field.name, "")
