"""The first success wins."""

from typing import TypeVar, Unpack

from shoal.errors import AllFailed, CallCancelled
from shoal.patterns.flow import Flow
from shoal.patterns.how import How, Options
from shoal.patterns.outcome import Cancelled, Ok
from shoal.patterns.source import Call, Source

T = TypeVar("T")


async def race(calls: Source[Call[T]], **options: Unpack[Options[T]]) -> T:
    """Give the value of the first call that succeeds; the others are cancelled and have ended by then.

    Raises `AllFailed` with every cause, or `TimedOut` when the deadline passed first.
    """
    how: How[T] = How(**options)
    winner: Ok[T] | None = None
    errors: list[Exception] = []
    async with Flow(calls, how) as flow:
        async for outcome in flow:
            match outcome:
                case Ok():
                    winner = winner or outcome
                    flow.stop()
                case Cancelled(index):
                    errors.append(CallCancelled(index))
                case _:
                    errors.append(outcome.error)
    if winner is not None:
        return winner.value
    raise how.lateness() if how.is_late() else AllFailed(errors)
