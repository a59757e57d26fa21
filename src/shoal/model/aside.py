"""Files of a base that a session goes without."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """*start* is *commit* without what earlier agents wrote at *paths*, which are escaped for display."""

    commit: str
    start: str
    paths: tuple[str, ...]
