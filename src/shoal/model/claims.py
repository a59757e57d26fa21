"""Claims: which files agents say that they are about to change, how two of them meet, and the events of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_CLAIMED = 50
"""Patterns of one session."""
MOST_PATTERNS = 1000
"""Patterns of a run."""
MOST_PATTERN_CHARS = 200
MOST_SEGMENTS = 32
MOST_WILD = 8
MOST_MINUTES = 240
WILD = "*?"
DEEP = "**"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMade:
    """An agent said which files it is about to change, for so many *seconds*; *others* had claimed some of them."""

    run: str
    session: str
    agent: str
    patterns: tuple[str, ...]
    why: str = ""
    seconds: float = 0.0
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReleased:
    """An agent has done what it claimed; no patterns are all of its claims."""

    run: str
    session: str
    patterns: tuple[str, ...] = ()


ClaimEvent = ClaimMade | ClaimReleased


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimState:
    """A claim that holds."""

    agent: str
    session: str
    pattern: str
    why: str = ""
    until: float = 0.0

    def as_fields(self) -> dict[str, object]:
        """Return it for a document."""
        place = {"agent": self.agent, "session": self.session, "files": self.pattern}
        return {**place, "why": self.why, "until": self.until}


def clean_pattern(written: str) -> str:
    """Return a pattern below the top of the repository; raise `ValueError` with the reason if it is none."""
    pattern = written.strip().removeprefix("./").strip("/")
    parts = pattern.split("/")
    if len(written) > MOST_PATTERN_CHARS or len(parts) > MOST_SEGMENTS:
        raise ValueError(f"a pattern may have {MOST_PATTERN_CHARS} characters and {MOST_SEGMENTS} folders")
    if sum(pattern.replace(DEEP, "*").count(char) for char in WILD) > MOST_WILD:
        raise ValueError(f"a pattern may have {MOST_WILD} wildcards")
    if ".." in parts or not pattern.isprintable():
        raise ValueError(f"{written[:60]!r} is no path in the repository")
    if not pattern.strip("*?./ "):
        raise ValueError("a claim on everything says nothing: name the files or folders that you will change")
    return pattern


def is_overlapping(first: str, second: str) -> bool:
    """Return whether a file can match both patterns; a name without wildcards also means all below it."""
    return _meet((*first.split("/"), DEEP), (*second.split("/"), DEEP), lambda part: part == DEEP, _meet_names)


def _meet_names(first: str, second: str) -> bool:
    if not any(char in first + second for char in WILD):
        return first == second
    return _meet(first, second, lambda char: char == "*", lambda a, b: a == b or "?" in (a, b))


def _meet(
    first: Sequence[str], second: Sequence[str], is_any: Callable[[str], bool], fits: Callable[[str, str], bool]
) -> bool:
    """Return whether something matches both, where what *is_any* stands for any number of parts."""
    reached = {(0, 0)}
    todo = [(0, 0)]
    while todo:
        at, to = todo.pop()
        if at == len(first) and to == len(second):
            return True
        for step in _list_steps(first[at : at + 1], second[to : to + 1], is_any, fits):
            place = (at + step[0], to + step[1])
            if place not in reached:
                reached.add(place)
                todo.append(place)
    return False


def _list_steps(
    first: Sequence[str], second: Sequence[str], is_any: Callable[[str], bool], fits: Callable[[str, str], bool]
) -> list[tuple[int, int]]:
    steps = []
    if first and is_any(first[0]):
        steps += [(1, 0), *([(0, 1)] if second else [])]
    if second and is_any(second[0]):
        steps += [(0, 1), *([(1, 0)] if first else [])]
    if first and second and not is_any(first[0]) and not is_any(second[0]) and fits(first[0], second[0]):
        steps.append((1, 1))
    return steps
