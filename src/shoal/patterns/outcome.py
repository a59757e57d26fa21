"""How a call of a pattern ended, as a value, and the progress of a pattern."""

import inspect
import time
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """It succeeded with *value*; *index* says which call it was, in input order."""

    value: T_co
    index: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Err:
    """It failed with *error*, whose traceback is kept."""

    error: Exception
    index: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """It was cancelled, by itself or from outside the pattern; that is not a failure."""

    index: int = field(default=0, compare=False)


Outcome: TypeAlias = Ok[T] | Err | Cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How many calls succeeded, failed or were cancelled; *rate* is calls per second, *eta* the seconds left."""

    completed: int
    failed: int
    cancelled: int
    total: int | None
    elapsed: float
    rate: float
    eta: float | None


class ProgressMeter:
    """Counts outcomes and calls a callback."""

    def __init__(self, callback: Callable[[Progress], Awaitable[None] | None] | None, total: int | None) -> None:
        self._callback = callback
        self._total = total
        self._began = time.monotonic()
        self._counts: dict[type, int] = {Ok: 0, Err: 0, Cancelled: 0}
        self._trouble: Exception | None = None

    async def count(self, outcome: Outcome[object]) -> None:
        """Count *outcome* and call the callback."""
        self._counts[type(outcome)] += 1
        if self._callback is None or self._trouble is not None:
            return
        try:
            waiting = self._callback(self.now())
            if inspect.isawaitable(waiting):
                await waiting
        except Exception as error:
            self._trouble = error

    def now(self) -> Progress:
        """Return the progress."""
        done = sum(self._counts.values())
        elapsed = time.monotonic() - self._began
        rate = done / elapsed if elapsed > 0 else 0.0
        eta = (self._total - done) / rate if self._total is not None and rate else None
        return Progress(
            completed=self._counts[Ok],
            failed=self._counts[Err],
            cancelled=self._counts[Cancelled],
            total=self._total,
            elapsed=elapsed,
            rate=rate,
            eta=eta,
        )

    def close(self) -> None:
        """Report a callback that raised."""
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            warnings.warn(f"a progress callback raised {trouble!r}", RuntimeWarning, stacklevel=2)
