"""All must succeed."""

from typing import TypeVar, Unpack

from shoal.errors import CallCancelled
from shoal.patterns.flow import Flow
from shoal.patterns.how import How, Options
from shoal.patterns.outcome import Cancelled, Ok
from shoal.patterns.progress import Meter
from shoal.patterns.source import Call, Source

T = TypeVar("T")


async def gather(calls: Source[Call[T]], **options: Unpack[Options[T]]) -> list[T]:
    """Run all calls and give their values in input order; the first failure ends the rest and is raised itself.

    What others failed with before they were ended is added to it as notes.
    """
    return await gathered(calls, How(**options))


async def gathered(calls: Source[Call[T]], how: How[T], meter: Meter | None = None) -> list[T]:
    """Gather as *how* says, counting into *meter*."""
    values: dict[int, T] = {}
    failure: Exception | None = None
    async with Flow(calls, how, meter=meter) as flow:
        async for outcome in flow:
            if isinstance(outcome, Ok):
                values[outcome.index] = outcome.value
                continue
            error = CallCancelled(outcome.index) if isinstance(outcome, Cancelled) else outcome.error
            if failure is None:
                failure = error
                flow.stop()
            elif error is not failure:
                failure.add_note(f"call {outcome.index} failed too: {error!r}")
    if failure is None and flow.is_cut:
        failure = how.lateness()
    if failure is not None:
        raise failure
    return [values[index] for index in sorted(values)]
