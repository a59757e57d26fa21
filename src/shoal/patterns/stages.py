"""One after the other, each with what the former found."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, Unpack

from shoal.patterns.gather import gathered
from shoal.patterns.how import How, Options
from shoal.patterns.progress import Meter

# `Any`: each stage takes what the one before it gives, and Python's types cannot say that of a list of functions.
Function: TypeAlias = Callable[[Any], Awaitable[Any]]
Stage: TypeAlias = Function | Sequence[Function]


async def stages(*stages: Stage, initial: object = None, **options: Unpack[Options[Any]]) -> Any:  # noqa: ANN401
    """Run the stages one after the other and give the last one's result.

    A stage is a function of the former stage's result (of *initial*, for the first), or several such functions, which
    run at once as in `gather` and whose results go on as a list. A failure ends its stage and no later one starts.
    """
    how: How[Any] = How(**options)
    whole = [(stage,) if callable(stage) else tuple(stage) for stage in stages]
    meter = Meter(how.progress, sum(len(functions) for functions in whole))
    result: Any = initial
    for stage, functions in zip(stages, whole, strict=True):
        calls = [partial(function, result) for function in functions]
        results = await gathered(calls, how, meter)
        result = results[0] if callable(stage) else results
    return result
