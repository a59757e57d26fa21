"""How sessions, steps and runs end, and how the status of a whole follows from those of its parts."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shoal.errors import BadInput, UnknownName


class Status(StrEnum):
    """Where a session is, or how it ended."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    """A run that starts no agents until it is continued."""
    SUCCEEDED = "succeeded"
    NO_CHANGES = "no_changes"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    OVER_LIMIT = "over_limit"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """Its Shoal was killed; what it left is brought in by the next command that writes."""
    LOST = "lost"
    """As `INTERRUPTED`, in the records of older versions."""
    SKIPPED = "skipped"
    DEGRADED = "degraded"

    @property
    def is_good(self) -> bool:
        """Return whether this counts as success."""
        return self in (Status.SUCCEEDED, Status.NO_CHANGES)

    @property
    def is_interrupted(self) -> bool:
        """Return whether it was killed with its Shoal."""
        return self in (Status.INTERRUPTED, Status.LOST)

    @property
    def is_ended(self) -> bool:
        """Return whether nothing more will happen."""
        return self not in (Status.PENDING, Status.RUNNING, Status.PAUSED)

    @property
    def is_usable(self) -> bool:
        """Return whether other stages may build on a step that ended like this: it succeeded, at least in part."""
        return self in (Status.SUCCEEDED, Status.DEGRADED)


PATTERNS = ("settled", "gather", "race", "quorum=N")
MOST_WANTED = 999_999
FAILURE_RULES = {"fail_fast": "gather", "best_effort": "settled", "any": "race"}


@dataclass(frozen=True, slots=True)
class Rule:
    """`settled`: all go on to their end; `gather`: the first failure stops the rest; `race`: the first success does.

    `quorum`: *wanted* successes do, and so does their becoming impossible.
    """

    pattern: str = "settled"
    wanted: int = 0

    @classmethod
    def of(cls, written: str) -> "Rule":
        """Read `settled`, `gather`, `race` or `quorum=2`."""
        if found := re.fullmatch(r"quorum=(\d{1,6})", written):
            if int(found[1]) < 1:
                raise BadInput("`quorum` must be at least 1")
            return cls("quorum", int(found[1]))
        if written not in PATTERNS[:-1]:
            raise UnknownName("pattern", written, PATTERNS)
        return cls(written)

    @classmethod
    def on_failure(cls, written: str) -> "Rule":
        """Return the rule that a step's `on_failure` stands for, a quorum being spelt `quorum=2`."""
        return cls.of(FAILURE_RULES.get(written, written))

    def why_not(self, total: int) -> str | None:
        """Return why *total* workers can never satisfy the rule, or `None`."""
        if total and self.count_required(total) > total:
            return f"a quorum of {self.wanted} needs more than {total} worker{'s' if total > 1 else ''}"
        return None

    def count_required(self, total: int) -> int:
        """Return how many of *total* have to succeed."""
        return {"race": min(1, total), "quorum": self.wanted}.get(self.pattern, total)


def step_status(rule: Rule, workers: Sequence[Status]) -> Status:
    """Return how a step ended whose workers ran by *rule*."""
    if not workers:  # a matrix of no items has nothing to do
        return Status.SUCCEEDED
    if all(status is Status.SKIPPED for status in workers):
        return Status.SKIPPED
    good = sum(status.is_good for status in workers)
    if good >= rule.count_required(len(workers)):
        return Status.SUCCEEDED
    if all(status.is_good or status is Status.CANCELLED for status in workers):
        return Status.CANCELLED
    return Status.DEGRADED if good and rule.pattern == "settled" else Status.FAILED


def single_status(worker: Status) -> Status:
    """Return how a step ended that has one worker, and nothing to decide."""
    if worker.is_good:
        return Status.SUCCEEDED
    return worker if worker in (Status.CANCELLED, Status.SKIPPED) else Status.FAILED


def group_status(stages: Collection[Status], *, are_met: bool) -> Status:
    """Return how a group ended by the *stages* that count; *are_met* says whether all that had to succeed did."""
    if not are_met:
        return Status.FAILED
    return Status.DEGRADED if Status.DEGRADED in stages else Status.SUCCEEDED


def run_status(stages: Collection[Status]) -> Status:
    """Return how a run ended by the outer *stages* that count."""
    found = set(stages)
    if found <= {Status.SUCCEEDED}:
        return Status.SUCCEEDED
    if found & {Status.SUCCEEDED, Status.DEGRADED}:
        return Status.DEGRADED
    return Status.CANCELLED if found == {Status.CANCELLED} else Status.FAILED


def share_status(good: int, total: int) -> Status:
    """Return how something ended of which *good* of *total* parts succeeded, in no order and by no rule."""
    if good == total:
        return Status.SUCCEEDED
    return Status.DEGRADED if good else Status.FAILED
