"""The options that all patterns share."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypedDict, TypeVar

from shoal.errors import BadInput, TimedOut
from shoal.patterns.limiter import Limiter, default_limiter
from shoal.patterns.outcome import Progress
from shoal.patterns.retry import Retry
from shoal.patterns.slot import Slot

T = TypeVar("T")


class Options(TypedDict, Generic[T], total=False):
    """The keyword arguments of every pattern; `PatternSettings` documents them and their defaults."""

    limit: int | None
    timeout: float | None
    deadline: float | None
    retry: Retry | None
    accept: Callable[[T], bool] | None
    progress: Callable[[Progress], Awaitable[None] | None] | None
    limiter: Limiter | None
    priority: int | None
    run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSettings(Generic[T]):
    """How a pattern runs its calls."""

    limit: int | None = None  # how many of this pattern at once; the limiter's own number unless given
    timeout: float | None = None  # seconds for each attempt, from its start
    deadline: float | None = None  # seconds for the whole pattern, waiting and retries included
    retry: Retry | None = None  # how failed calls are run again; waiting for that holds no slot
    accept: Callable[[T], bool] | None = None  # what counts as a success; anything else fails as `Refused`
    progress: Callable[[Progress], Awaitable[None] | None] | None = None
    limiter: Limiter | None = None
    priority: int | None = None
    run: str | None = None
    ends_at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        for name in ("limit", "timeout", "deadline"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise BadInput(f"{name} must be above 0, not {value}")
        object.__setattr__(self, "limiter", self.limiter or default_limiter())
        if self.deadline is not None:
            object.__setattr__(self, "ends_at", asyncio.get_running_loop().time() + self.deadline)

    def seconds_left(self) -> float | None:
        """Return how long the whole may still take."""
        return None if self.ends_at is None else self.ends_at - asyncio.get_running_loop().time()

    def is_late(self) -> bool:
        """Return whether the deadline of the whole has passed."""
        left = self.seconds_left()
        return left is not None and left <= 0

    def lateness(self) -> TimedOut:
        """Return the error of a call that the deadline ended."""
        return TimedOut("the deadline", self.deadline or 0)

    def overtime(self) -> TimedOut:
        """Return the error of a call that exceeded its own timeout."""
        return TimedOut("the timeout", self.timeout or 0)

    def width(self) -> int:
        """Return how many calls may be begun and not yet delivered."""
        return self.limit or (self.limiter or default_limiter()).max_concurrent

    def slot(self) -> Slot:
        """Ask for a slot for one of the calls."""
        return (self.limiter or default_limiter()).slot(priority=self.priority, run=self.run)
