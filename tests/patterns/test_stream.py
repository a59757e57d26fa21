"""Streams: lazy, bounded, ordered on request, and ended when they are left."""

import asyncio
import gc
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.patterns import Err, Finished, Limiter, Ok, Progressed, Started, chunked, events, gather, stream
from tests.patterns.acting import Boom, Watch, limited


async def same(item: int) -> int:
    return item


async def counted(numbers: Iterator[int]) -> AsyncIterator[int]:
    for number in numbers:
        await asyncio.sleep(0)
        yield number


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_results_come_in_order_or_as_they_end_within_the_limit(
    delays: list[int], limit: int, max_concurrent: int, ordered: bool, is_async: bool
) -> None:
    async def scenario() -> None:
        watch = Watch()

        async def function(index: int) -> int:
            return await watch.good(index, ticks=delays[index])()

        indexes = iter(range(len(delays)))
        async with limited(max_concurrent):
            items = counted(indexes) if is_async else indexes
            seen = [one async for one in stream(function, items, limit=limit, ordered=ordered)]

        values = [one.value for one in seen if isinstance(one, Ok)]
        assert values == (list(range(len(delays))) if ordered else watch.ended)
        assert [one.index for one in seen] == values
        assert watch.peak <= min(limit, max_concurrent)

    asyncio.run(scenario())


@pytest.mark.parametrize("ordered", [False, True])
async def test_an_endless_source_is_pulled_only_as_results_are_taken(ordered: bool) -> None:
    pulled: list[int] = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            pulled.append(number)
            yield number

    async with limited(3), aclosing(stream(same, numbers(), limit=3, ordered=ordered)) as results:
        for taken in range(1, 20):
            await anext(results)
            for _ in range(20):
                await asyncio.sleep(0)
            assert taken <= len(pulled) <= taken + 3


async def test_leaving_early_ends_all_calls_and_closes_the_source() -> None:
    watch, closed = Watch(), []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in itertools.count():
                yield number
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def function(number: int) -> int:
        return await (watch.endless() if number else watch.good(0))()

    async with limited(4):
        async with aclosing(stream(function, numbers())) as results:
            async for _ in results:
                break
        assert watch.running == 0

    assert closed == [True]


async def test_a_bare_break_ends_the_calls_soon() -> None:
    watch = Watch()

    async def function(number: int) -> int:
        return await (watch.endless() if number else watch.good(0))()

    async with limited(4) as limiter:
        async for _ in stream(function, itertools.count()):
            break
        gc.collect()
        while watch.running or limiter.active or len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)


async def test_a_consumer_that_broke_off_keeps_its_slot_while_the_calls_end() -> None:
    watch = Watch()

    async def function(number: int) -> int:
        return await (watch.endless() if number else watch.good(0))()

    async def consumer() -> None:
        async for _ in stream(function, itertools.count()):
            break
        gc.collect()
        await watch.good(1, ticks=30)()

    async with limited(2) as limiter:
        await gather([consumer, *(watch.good(n) for n in range(40))], limit=50)
        while limiter.active or len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    assert watch.peak == 2


async def test_a_consumer_that_is_cancelled_in_its_own_code_loses_no_slot_even_without_closing() -> None:
    watch = Watch()

    async def consumer() -> None:
        async for _ in stream(lambda n: watch.good(n)(), itertools.count()):
            await asyncio.Event().wait()

    async with limited(2) as limiter:
        async with asyncio.TaskGroup() as group:
            async with limiter.slot():
                task = group.create_task(consumer())
            await watch.until(2)
            task.cancel()
        del task
        gc.collect()
        while limiter.active or len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_the_source_raises_is_raised_after_the_calls_ended(is_async: bool) -> None:
    watch, boom = Watch(), Boom("source")

    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise boom

    async with limited(4):
        with pytest.raises(Boom) as raised:
            async for _ in stream(lambda _: watch.endless()(), counted(broken()) if is_async else broken()):
                pass
        assert watch.running == 0

    assert raised.value is boom


async def test_a_stream_may_feed_a_stream() -> None:
    async def next_one(outcome: object) -> int:
        assert isinstance(outcome, Ok)
        return int(outcome.value) + 1

    async with limited(1):
        chain = stream(next_one, stream(same, range(20), ordered=True), ordered=True)
        assert [one async for one in chain] == [Ok(number) for number in range(1, 21)]


async def test_events_tell_what_happens_in_order() -> None:
    boom = Boom("second")

    async with limited(1):
        seen = [event async for event in events([Watch().good(1), Watch().bad(boom)])]

    assert [type(event) for event in seen] == [Started, Finished, Progressed] * 2
    assert seen[0] == Started(0)
    assert seen[4] == Finished(1, Err(boom))
    last = seen[-1]
    assert isinstance(last, Progressed)
    assert (last.progress.completed, last.progress.failed, last.progress.total) == (1, 1, 2)


async def test_chunks_are_made_of_any_iterable() -> None:
    assert list(chunked(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert [chunk async for chunk in chunked(counted(iter(range(4))), 2)] == [[0, 1], [2, 3]]
    assert next(chunked(itertools.count(), 3)) == [0, 1, 2]
    with pytest.raises(BadInput, match="at least 1"):
        chunked([], 0)


async def growth(items: int) -> int:
    """Stream so many items and give how many blocks of memory were ever held beyond those after the first thousand."""
    count, held = 0, list[int]()
    async for outcome in stream(same, iter(range(items)), limiter=Limiter(8)):
        count += 1
        assert isinstance(outcome, Ok)
        if count % 1000 == 0:
            held.append(sys.getallocatedblocks())
    assert count == items
    return max(held) - held[0]


@pytest.mark.deep
async def test_fifty_thousand_items_take_constant_memory() -> None:
    assert await growth(50_000) < 5_000


@pytest.mark.deep
@pytest.mark.timeout(1800)
async def test_a_million_items_take_constant_memory() -> None:
    assert await growth(1_000_000) < 5_000
