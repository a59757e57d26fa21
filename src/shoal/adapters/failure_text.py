"""Explain a client's failure in one line that says what to do."""

import json
import re
from collections.abc import Iterator

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
    """Say that it did not finish, with the first non-empty message in *told*."""
    reason = next((text for text in reasons if text.strip()), "")
    return f"it ended before it was done: {reason}" if reason else "it ended before it was done, and did not say why"


def last_line(errors: str) -> str:
    """Return the last line of stderr that says something."""
    return next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
