"""When a client's login file is the same login with newer tokens, and nothing else."""

import json
from collections.abc import Iterator

TOKENS = ("token", "expir", "refresh")
"""Parts of the names of what a refresh changes."""
LATER = ("expir", "last_refresh")
SECRET = ("token", "key", "secret", "password")


def is_refreshed(old: bytes, new: bytes) -> bool:
    """Say whether *new* is *old* with other tokens and a later end; whose login it is must be the same."""
    try:
        before, after = json.loads(old), json.loads(new)
        return _is_same(before, after, "") and _later(before, after)
    except (ValueError, RecursionError, OverflowError):  # of a time that is too great for any clock
        return False


def tokens(content: bytes) -> dict[str, str]:
    """Give the tokens of a login by their names: they are secrets."""
    try:
        return dict(_tokens(json.loads(content), ""))
    except (ValueError, RecursionError):
        return {}


def _tokens(value: object, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key in value:
            yield from _tokens(value[key], str(key))
    elif isinstance(value, str) and any(part in name.lower() for part in SECRET):
        yield name, value


def _is_same(old: object, new: object, name: str) -> bool:
    """Compare two values by their form, and by all that is no token."""
    if type(old) is not type(new):
        return False
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_is_same(old[key], new[key], str(key)) for key in old)
    return old == new or (not isinstance(old, list) and any(part in name.lower() for part in TOKENS))


def _later(old: object, new: object) -> bool:
    """Say whether a time that is named in both is later in the new one, and none is earlier."""
    steps = list(_steps(old, new, ""))
    return max(steps, default=0) > 0 and min(steps, default=0) >= 0


def _steps(old: object, new: object, name: str) -> Iterator[int]:
    """Say of each time whether it went on (1), back (-1) or stayed; texts are those that sort as times do."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            yield from _steps(old[key], new[key], str(key))
    elif any(part in name.lower() for part in LATER) and type(old) is type(new):
        before, after = (f"{one:020.3f}" if isinstance(one, int | float) else str(one) for one in (old, new))
        yield (after > before) - (after < before)
