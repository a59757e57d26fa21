"""A document's problems: what is wrong, where, and what would be right."""

import difflib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.errors import BadInput

SHOWN = 60
CANDIDATES = 50  # comparing is slow: 5,000 wrong names against 5,000 right ones would take minutes
MOST = 200


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a text, both counted from 1."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A problem in a file; *at* is `None` if it is about the whole file."""

    name: str
    at: Position | None
    what: str

    def __str__(self) -> str:
        """Write it as `file:line:column: what`."""
        place = f":{self.at.line}:{self.at.column}" if self.at else ""
        return f"{printable(self.name)}{place}: {self.what}"


class BadDocument(BadInput):
    """An invalid document, with all of its problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems), key=_order))
        more = [f"… and {len(self.problems) - MOST} more"] if len(self.problems) > MOST else []
        super().__init__("\n".join([*map(str, self.problems[:MOST]), *more]))


def show_value(value: object) -> str:
    """Show a user's value on one line, short and without control characters."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    whole = repr(value)
    return whole if len(whole) <= SHOWN else f"{whole[:SHOWN]}…"


def key(name: str) -> str:
    """Show a key in backticks."""
    return f"`{printable(name)[:SHOWN]}`"


def printable(text: str) -> str:
    """Escape characters that would move a terminal's cursor or reverse its text."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint: the closest known name, or all of them."""
    names = [printable(candidate) for candidate in itertools.islice(known, CANDIDATES)]
    near = close(name, names)
    return f"did you mean `{near}`?" if near else f"known: {', '.join(names) or 'none'}"


def close(name: str, known: Iterable[str]) -> str | None:
    """Return the nearest known name, if one is near."""
    return next(iter(difflib.get_close_matches(name[:SHOWN].lower(), list(known), n=1)), None)


def _order(problem: Problem) -> tuple[str, Position, str]:
    return problem.name, problem.at or Position(), problem.what
