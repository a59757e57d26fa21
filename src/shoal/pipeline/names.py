"""Names of steps, agents, personas and pipelines: they become branch names and folders."""

import re

PATTERN = r"[a-z0-9][a-z0-9-]{0,47}"
LONGEST = 48

_NAME = re.compile(PATTERN)


def is_name(text: str) -> bool:
    """Say whether *text* may be a name."""
    return _NAME.fullmatch(text) is not None


def slug(text: str, *, otherwise: str = "step") -> str:
    """Make the nearest name out of any text."""
    dashed = re.sub(r"[^a-z0-9]+", "-", text[:1000].lower()).strip("-")
    return dashed[:LONGEST].rstrip("-") or otherwise
