"""Parse a client's lines as untrusted events, and explain its failure in one line."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.model.activity import Act, Activity

DEEPEST_BYTES = 8 * 2**20
GREATEST = 2**53
"""Of a count: more than a client can mean, and sums of it stay numbers that JSON has."""
MAX_NAME_CHARS = 200


def event(line: str) -> Mapping[str, object] | None:
    """Read a line as a JSON object; `None` for anything else."""
    if not line.startswith("{") or len(line) > DEEPEST_BYTES:
        return None
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def plain(line: str) -> list[Activity]:
    """Return a line that is not an event as text."""
    return [Activity(act=Act.SAID, text=line)] if line.strip() else []


def words(value: object) -> str:
    """Return a value as text: a string as it is, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def name(value: object) -> str:
    """Return a client's name for something, bounded."""
    return words(value)[:MAX_NAME_CHARS]


def objects(values: object) -> list[Mapping[str, object]]:
    """Return the objects in a list, or none if it is not a list."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def number(value: object) -> float:
    """Return a count or a price; 0 if *value* is neither."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= GREATEST:
        return 0
    return value


def argument(values: object) -> str:
    """Return the most telling argument of a tool: a command or a path, else all of them."""
    if not isinstance(values, dict):
        return words(values)
    for key in ("command", "cmd", "file_path", "filePath", "path", "absolute_path", "pattern", "url"):
        if key in values:
            return words(values[key])
    return words(values)


MOST = 1000


@dataclass(slots=True)
class Calls:
    """The tools of the running calls, bounded."""

    _tools: dict[str, str] = field(default_factory=dict)

    def begin(self, call: str, tool: str) -> None:
        """Remember which tool a *call* belongs to."""
        if len(self._tools) < MOST:
            self._tools[call[:MAX_NAME_CHARS]] = tool[:MAX_NAME_CHARS]

    def end(self, call: str) -> str:
        """Return the tool of *call*, and forget it; nothing for one that is not known."""
        return self._tools.pop(call[:MAX_NAME_CHARS], "")


LONGEST = 500
MARKS = r"\b40[13]\b|unauthori[sz]ed|unauthenticated|authenticat|api[ _-]?key|permission_denied|not logged in"
_REFUSED = re.compile(MARKS, re.IGNORECASE)


def explain_failure(why: str, login: str, *, is_login: bool = False) -> str:
    """Put *why* on one line, and add how to log in if that is the cause."""
    line = " ".join(_clear(why).split())[:LONGEST]
    if is_login or _REFUSED.search(why):
        return f"the model's provider refused its login: {line}; {login}"
    return line


def _clear(why: str) -> str:
    """Extract the message of an error that is or contains JSON."""
    begin, end = why.find("{"), why.rfind("}")
    if not 0 <= begin < end:
        return why
    try:
        inner = json.loads(why[begin : end + 1])
    except (ValueError, RecursionError):
        return why
    messages = list(_messages(inner))
    return f"{messages[0]}{_code(inner)}" if messages else why


def _messages(value: object, depth: int = 0) -> Iterator[str]:
    match value:
        case {"message": str(text)} if text.strip():
            yield text
        case dict() if depth < 4:
            for item in value.values():
                yield from _messages(item, depth + 1)


def _code(value: object) -> str:
    match value:
        case {"error": {"code": int(code)}} | {"error": {"status": int(code)}}:
            return f" ({code})"
    return ""


def describe_unfinished(*reasons: str) -> str:
    """Return that it did not finish, with the first non-empty message in *told*."""
    reason = next((text for text in reasons if text.strip()), "")
    return f"it ended before it was done: {reason}" if reason else "it ended before it was done, and did not say why"


def last_line(errors: str) -> str:
    """Return the last line of stderr that says something."""
    return next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
