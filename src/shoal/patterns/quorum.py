"""Enough of them succeed."""

from typing import TypeVar, Unpack

from shoal.errors import BadInput, CallCancelled, QuorumMissed
from shoal.patterns.flow import Flow
from shoal.patterns.how import How, Options
from shoal.patterns.outcome import Cancelled, Ok
from shoal.patterns.source import Call, Source, size_of

T = TypeVar("T")


async def quorum(calls: Source[Call[T]], n: int, **options: Unpack[Options[T]]) -> list[T]:
    """Give the values of the first *n* calls that succeed, in input order, and end the rest.

    Raises `QuorumMissed` as soon as too many have failed, or `TimedOut` when the deadline passed first.
    """
    if n < 0:
        raise BadInput(f"a quorum is at least 0, not {n}")
    how: How[T] = How(**options)
    total = size_of(calls)
    good: dict[int, T] = {}
    errors: list[Exception] = []
    async with Flow(calls if total is None or total >= n > 0 else (), how) as flow:
        async for outcome in flow:
            match outcome:
                case Ok(value, index) if len(good) < n:
                    good[index] = value
                case Ok():
                    pass  # it ended well while it was being cancelled
                case Cancelled(index):
                    errors.append(CallCancelled(index))
                case _:
                    errors.append(outcome.error)
            if len(good) == n or (total is not None and total - len(errors) < n):
                flow.stop()
    if len(good) == n:
        return [good[index] for index in sorted(good)]
    raise how.lateness() if how.is_late() else QuorumMissed(n, len(good), errors)
