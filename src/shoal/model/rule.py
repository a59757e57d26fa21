"""When workers that run together have done enough, and when the rest is stopped."""

import re
from dataclasses import dataclass

from shoal.errors import BadInput, UnknownName

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
