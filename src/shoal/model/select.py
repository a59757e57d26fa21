"""Select the best of several workers' results, and say why."""

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

CRITERIA = ("command", "contract", "diff_size", "agent")
"""The criteria, the most reliable first."""
LONGEST_ANSWER = 16 * 1024
MOST_TRIES = 500
UNCHANGED = "it changed nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """The criteria for the winner: tests first, then the smallest change, then a judge."""

    by: tuple[str, ...]
    command: str | tuple[str, ...] | None = None
    """Runs on each result; must exit with 0, and may print a score last, higher is better."""
    agent: str | None = None
    persona: str | None = None
    criteria: str | None = None
    """What the judge should look for."""
    timeout: float | None = None

    @property
    def judge(self) -> str | None:
        """Name the judge, as reviewers are named; `None` if there is none."""
        if self.persona is not None:
            return f"persona {self.persona}"
        return None if self.agent is None else f"agent {self.agent}"

    def __post_init__(self) -> None:
        """Keep the criteria in the order of evaluation."""
        object.__setattr__(self, "by", tuple(criterion for criterion in CRITERIA if criterion in self.by))


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectCandidate:
    """The criteria of one result; `None` if not requested or unknown."""

    index: int
    is_good: bool = True
    exit_code: int | None = None
    failure: str | None = None
    """Why the command failed."""
    score: float | None = None
    contracts_met: int | None = None
    contracts: int = 0
    lines_changed: int | None = None
    has_changes: bool = True
    """Whether it changed anything: an empty file has no lines, but is a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRow:
    """One worker's rank, and why."""

    index: int
    is_eligible: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All workers, best first; *why* says how the winner was chosen, or why there is none."""

    winner: int | None
    rows: tuple[RankedRow, ...]
    why: str


Place = tuple[float, ...]


def rank_results(
    by: Collection[str], candidates: Sequence[SelectCandidate], verdict: Sequence[int] | None = None
) -> Ranking:
    """Rank results by the criteria *by*; *verdict* is the judge's order, best first, or `None`.

    Ties go to the one with changes, then to the lower index. If a judge was asked to break a tie and gave no order,
    nobody wins.
    """
    order = sorted(
        candidates, key=lambda candidate: (_place(by, candidate), _judge_rank(by, candidate, verdict), candidate.index)
    )
    rows = tuple(_row(by, candidate, verdict) for candidate in order)
    if not rows or not rows[0].is_eligible:
        return Ranking(winner=None, rows=rows, why="no result meets what is asked of a winner")
    tied = contenders(by, candidates)
    if "agent" in by and len(tied) > 1 and not set(tied) & set(verdict or ()):
        return Ranking(winner=None, rows=rows, why="the judge gave no order that can be read")
    return Ranking(winner=rows[0].index, rows=rows, why=_why(by, tied))


def contenders(by: Collection[str], candidates: Sequence[SelectCandidate]) -> tuple[int, ...]:
    """Return the best candidates for the judge, who sees only those."""
    eligible = [candidate for candidate in candidates if _is_eligible(by, candidate)]
    best = min((_place(by, candidate) for candidate in eligible), default=())
    return tuple(sorted(candidate.index for candidate in eligible if _place(by, candidate) == best))


def score_of(output: str) -> float | None:
    """Read the score that a command printed as its last line, if that is a number."""
    lines = output[-1000:].strip().splitlines()
    try:
        score = float(lines[-1]) if lines else math.nan
    except ValueError:
        return None
    return score if math.isfinite(score) else None


def parse_judgement(output: str, candidates: Collection[int]) -> list[int] | None:
    """Parse a judge's answer: its last JSON object, `{"ranking": [2, 0]}` or `{"winner": 2}`; otherwise `None`."""
    answer = _last_object(output[-LONGEST_ANSWER:])
    ranking, winner = answer.get("ranking"), answer.get("winner")
    if ranking is None and winner is not None:
        ranking = [winner]
    if not isinstance(ranking, list) or not ranking or not all(_is_one_of(index, candidates) for index in ranking):
        return None
    if len(set(ranking)) < len(ranking) or winner not in (None, ranking[0]) or isinstance(winner, bool):
        return None
    return [*ranking, *sorted(set(candidates) - set(ranking))]


def _place(by: Collection[str], candidate: SelectCandidate) -> Place:
    """Return the sort key before a judge; smaller is better."""
    placed: dict[str, Callable[[SelectCandidate], Place]] = {
        "command": lambda candidate: (
            candidate.exit_code != 0,
            math.inf if candidate.score is None else -candidate.score,
        ),
        "contract": lambda candidate: (
            math.inf if candidate.contracts_met is None else candidate.contracts - candidate.contracts_met,
        ),
        "diff_size": lambda candidate: (
            not candidate.has_changes,
            math.inf if candidate.lines_changed is None else candidate.lines_changed,
        ),
    }
    places = (placed[name](candidate) for name in CRITERIA if name in by and name in placed)
    # A judge may find that no change was needed; without one, a result without changes loses ties.
    last = () if "agent" in by else (not candidate.has_changes,)
    return (not _is_eligible(by, candidate), *(number for place in places for number in place), *last)


def _judge_rank(by: Collection[str], candidate: SelectCandidate, verdict: Sequence[int] | None) -> int:
    if "agent" not in by or verdict is None or candidate.index not in verdict:
        return len(verdict or ())
    return verdict.index(candidate.index)


def _is_eligible(by: Collection[str], candidate: SelectCandidate) -> bool:
    return candidate.is_good and ("command" not in by or candidate.exit_code == 0)


def _row(by: Collection[str], candidate: SelectCandidate, verdict: Sequence[int] | None) -> RankedRow:
    reasons = [] if candidate.is_good else ["it did not succeed"]
    if "command" in by:
        reasons.append(_describe_trial(candidate))
        reasons += [] if candidate.score is None else [f"score {candidate.score:g}"]
    if "contract" in by:
        reasons.append(f"{candidate.contracts_met or 0} of {candidate.contracts} contracts met")
    if "diff_size" in by:
        reasons += _size(candidate)
    elif candidate.is_good and not candidate.has_changes:
        reasons.append(UNCHANGED)
    if "agent" in by and verdict is not None and candidate.index in verdict:
        reasons.append(f"place {verdict.index(candidate.index) + 1} by the judge")
    return RankedRow(index=candidate.index, is_eligible=_is_eligible(by, candidate), reasons=tuple(reasons))


def _describe_trial(candidate: SelectCandidate) -> str:
    if candidate.failure:
        return f"the command did not pass: {candidate.failure.splitlines()[0]}"
    return "the command was not run" if candidate.exit_code is None else f"the command exited {candidate.exit_code}"


def _size(candidate: SelectCandidate) -> list[str]:
    if candidate.lines_changed is None:
        return ["size unknown"]
    lines = f"{candidate.lines_changed} line{'' if candidate.lines_changed == 1 else 's'} changed"
    return [lines] if candidate.has_changes else [f"{UNCHANGED}, which ranks behind any size"]


def _why(by: Collection[str], tied: Sequence[int]) -> str:
    asked = ", ".join(name for name in CRITERIA if name in by and name != "agent")
    if len(tied) == 1:
        return f"the best by {asked}" if asked else "the only one that ended well"
    if "agent" in by:
        return f"the judge's choice of {len(tied)}"
    return f"the first of {len(tied)} that are equal by {asked or 'all that was asked'}"


def _last_object(text: str) -> dict[str, object]:
    """Return the JSON object that *text* ends with: an earlier one may be quoted material."""
    text = text.rstrip().removesuffix("```").rstrip()
    decoder, at = json.JSONDecoder(), text.rfind("{")
    for _ in range(MOST_TRIES):
        if at < 0:
            return {}
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = -1
        if end == len(text) and isinstance(value, dict):
            return value
        at = text.rfind("{", 0, at)
    return {}


def _is_one_of(value: object, candidates: Collection[int]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in candidates
