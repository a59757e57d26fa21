"""Templates: `{{ name }}`, `{% if %}` and `{% for %}` in prompts, in Jinja's syntax, with access to data only.

Jinja's parser reads them (`syntax`), and `evaluation` walks the result: nothing of a template is compiled or run.
Data is never read as a template. Jinja is imported only if there is a template.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from shoal.pipeline.templates.filters import MAX_OUTPUT, BadTemplate, is_so

if TYPE_CHECKING:
    from shoal.pipeline.templates.syntax import NameUse

__all__ = ["BadTemplate", "is_plain", "is_true", "names", "render_template", "syntax_problem", "uses"]


def names(text: str, *, is_condition: bool = False) -> frozenset[str]:
    """Return the dotted paths that a template uses, like `steps.plan.output`; raise `BadTemplate` if it is invalid."""
    return frozenset(use.path for use in uses(text, is_condition=is_condition))


def uses(text: str, *, is_condition: bool = False) -> "tuple[NameUse, ...]":
    """Return each use of a name in a template or condition: its path, its place, and whether it may be missing."""
    if is_plain(text) and not is_condition:
        return ()
    from shoal.pipeline.templates.syntax import condition, find_uses, parse_template

    with _told():
        return find_uses(condition(text) if is_condition else parse_template(text), text)


def syntax_problem(text: str, *, is_condition: bool = False) -> str | None:
    """Return a template's syntax error, or `None`; unknown names are not checked."""
    try:
        uses(text, is_condition=is_condition)
    except BadTemplate as error:
        return str(error)
    return None


def render_template(text: str, context: Mapping[str, object]) -> str:
    """Render a template; raise `BadTemplate` for a name that is not in *context*."""
    if is_plain(text):
        return text
    from shoal.pipeline.templates.evaluation import Evaluation
    from shoal.pipeline.templates.syntax import parse_template

    with _told():
        return "".join(_limit_size(Evaluation().write(parse_template(text).body, context)))


def is_true(condition: str | bool, context: Mapping[str, object]) -> bool:
    """Return whether a condition holds: `x == 'y'` or `{{ x == 'y' }}`; empty, `false`, `0` and `no` are false."""
    if isinstance(condition, bool):
        return condition
    from shoal.pipeline.templates import syntax
    from shoal.pipeline.templates.evaluation import Evaluation

    with _told():
        return is_so(Evaluation().value(syntax.condition(condition), context))


def is_plain(text: str) -> bool:
    """Return whether a text contains no template syntax."""
    return "{{" not in text and "{%" not in text


def _limit_size(pieces: Iterator[str]) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece.encode(errors="replace"))
        if size > MAX_OUTPUT:
            raise BadTemplate(f"the text would be larger than {MAX_OUTPUT // 1024} KiB; put less into it")
        yield piece


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Describe excessive nesting, in the template or in the data."""
    try:
        yield
    except RecursionError:
        raise BadTemplate("the template or its data is nested too deeply; make it flatter") from None
