"""Parse durations as people write them."""

import re

from shoal.errors import BadInput

LONGEST = 30 * 24 * 3600

_PARTS = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")


class BadDuration(BadInput):
    """An invalid or excessive duration."""

    def __init__(self, written: object) -> None:
        shown = repr(written)[:60]
        super().__init__(f"{shown} is not a duration; write seconds, or like `90s`, `10m`, `1h30m` (30 days at most)")


def seconds(written: object) -> float:
    """Return the seconds of `90`, `"90s"`, `"10m"` or `"1h30m"`; raise `BadDuration` for anything else."""
    length = _sum(written) if isinstance(written, str) else written
    if isinstance(length, bool) or not isinstance(length, int | float) or not 0 < length <= LONGEST:
        raise BadDuration(written)
    return float(length)


def _sum(written: str) -> float | None:
    found = _PARTS.fullmatch(written.replace(" ", ""))
    if found is None:
        return None
    hours, minutes, rest = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + rest
