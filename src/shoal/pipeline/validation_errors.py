"""Translate pydantic's errors into our sentences, each at its position in the text."""

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shoal.pipeline.fields import OURS, UNKNOWN_KEY
from shoal.pipeline.problems import Position, Problem, key, show_value
from shoal.pipeline.tree import Node, key_position, plain, position

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text; put it in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "more than"),
}


def shape_problems(shape: type[BaseModel], tree: Node, name: str) -> list[Problem]:
    """Return all problems of *tree* with its *shape*."""
    try:
        shape.model_validate(plain(tree))
    except ValidationError as error:
        found = error.errors(include_url=False)
        return [Problem(name, _at(tree, details), _sentence(details)) for details in found]
    return []


def _at(tree: Node, details: ErrorDetails) -> Position:
    if details["type"] == UNKNOWN_KEY:
        return key_position(tree, details["loc"])
    return position(tree, details["loc"])


def _sentence(details: ErrorDetails) -> str:
    kind, value = details["type"], details["input"]
    if kind in (OURS, UNKNOWN_KEY):
        return details["msg"]
    what = _subject(details["loc"])
    if kind == "missing":
        return f"{what} is missing; add it"
    if kind in _BOUNDS:
        limit, words = _BOUNDS[kind]
        return f"{what} must be {words} {details['ctx'][limit]}, not {show_value(value)}"
    if kind in _KINDS:
        return f"{what} must be {_instead(kind, value)}"
    return f"{what}: {details['msg']}"


def _instead(kind: str, value: object) -> str:
    right, _, remedy = _KINDS[kind].partition("; ")
    hint = remedy if isinstance(value, int | float) else ""
    return f"{right}, not {show_value(value)}" + (f"; {hint}" if hint else "")


def _subject(loc: tuple[int | str, ...]) -> str:
    names = [part for part in loc if isinstance(part, str)]
    if not names:
        return "the top level"
    return key(names[-1]) if isinstance(loc[-1], str) else f"an item of {key(names[-1])}"
