"""Names of answers, messages and calls, fresh for each."""

import uuid

LENGTH = 22


def fresh(prefix: str) -> str:
    """Make a name that was not given before."""
    return prefix + uuid.uuid4().hex[:LENGTH]


def part(whole: str, index: int) -> str:
    """Name a part of what is named *whole*."""
    return f"{whole}{index:02x}"


def whole(part: object) -> str:
    """Give what the name of a part began with, without its prefix."""
    return str(part).rpartition("_")[2][:LENGTH]
