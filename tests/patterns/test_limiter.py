"""The limiter: never above its limit, never a slot lost, in the right order, and never a deadlock however calls nest."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.patterns import Limiter, default_limiter, gather, stream, use_limiter
from tests.patterns.acting import SOON, Boom, Watch, limited

T = TypeVar("T")


async def ticks(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def hold(limiter: Limiter, log: list[str], name: str, priority: int = 0, run: str = "") -> None:
    async with limiter.slot(priority=priority, run=run):
        log.append(name)
        await asyncio.sleep(0)


@asynccontextmanager
async def full(limiter: Limiter) -> AsyncIterator[asyncio.TaskGroup]:
    """Have all slots held by somebody else until the end of the block."""
    door = asyncio.Event()

    async def guest() -> None:
        async with limiter.slot():
            await door.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(limiter.max_concurrent):
            group.create_task(guest())
        await ticks()
        yield group
        await ticks()
        door.set()


async def served(asked: list[tuple[str, int, str]]) -> list[str]:
    """Queue up behind one holder and tell the order of service."""
    limiter, log = Limiter(1), list[str]()
    async with full(limiter) as group:
        for name, priority, run in asked:
            group.create_task(hold(limiter, log, name, priority=priority, run=run))
        await ticks()
        assert limiter.waiting == len(asked)
    return log


async def test_the_higher_priority_goes_first_and_equals_in_order() -> None:
    assert await served([("a", 0, ""), ("b", 5, ""), ("c", -1, ""), ("d", 5, "")]) == ["b", "d", "a", "c"]


async def test_runs_take_turns_whatever_their_number() -> None:
    asked = [("a1", 0, "a"), ("a2", 0, "a"), ("a3", 0, "a"), ("b1", 0, "b"), ("b2", 0, "b"), ("c1", 0, "c")]

    assert await served(asked) == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_call_below_another_has_its_run_and_priority() -> None:
    limiter, log = Limiter(1), list[str]()

    async def outer() -> None:
        async with limiter.slot(priority=9, run="mine"):
            await gather([lambda name=name: hold_nothing(log, name) for name in "xy"], limiter=limiter)  # type: ignore[misc]

    async with full(limiter) as group:
        group.create_task(hold(limiter, log, "other", priority=5))
        group.create_task(outer())
        await ticks()

    assert log == ["x", "y", "other"]


async def hold_nothing(log: list[str], name: str) -> None:
    log.append(name)
    await asyncio.sleep(0)


async def test_cancelled_in_the_tick_of_its_grant_a_waiter_gives_the_slot_back() -> None:
    limiter, log = Limiter(1), list[str]()

    async with asyncio.TaskGroup() as group:
        limiter_is_free = asyncio.Event()

        async def first() -> None:
            async with limiter.slot():
                await limiter_is_free.wait()
            assert limiter.active == 1, "given to the waiter, which has not run since"
            granted.cancel()

        group.create_task(first())
        granted = group.create_task(hold(limiter, log, "granted"))
        group.create_task(hold(limiter, log, "next"))
        await ticks()
        limiter_is_free.set()

    assert log == ["next"]
    assert (limiter.active, limiter.waiting) == (0, 0)


async def test_cancelled_just_before_a_release_a_waiter_is_passed_over() -> None:
    limiter, log = Limiter(1), list[str]()

    async with asyncio.TaskGroup() as group:

        async def first() -> None:
            async with limiter.slot():
                await ticks()
                cancelled.cancel()

        group.create_task(first())
        cancelled = group.create_task(hold(limiter, log, "cancelled"))
        group.create_task(hold(limiter, log, "next"))

    assert log == ["next"]
    assert limiter.active == 0


async def test_a_limit_can_be_changed_while_calls_wait() -> None:
    limiter, watch = Limiter(1), Watch()

    async def held() -> None:
        async with limiter.slot():
            await watch.good(0, ticks=20)()

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(held())
        await ticks(2)
        assert watch.running == 1
        limiter.resize(5)
        await ticks(2)
        assert watch.running == 5
        limiter.resize(2)
        await watch.until(8)
        assert watch.running <= 2

    with pytest.raises(BadInput, match="at least 1"):
        limiter.resize(0)


async def test_admission_waits_while_there_is_a_reason_and_tells_it_once() -> None:
    reason: list[str | None] = ["only 300 MB of memory free"]
    told: list[str | None] = []
    asked = asyncio.Event()

    def admit() -> str | None:
        asked.set()
        return reason[0]

    limiter, log = Limiter(2, admit=admit, told=told.append, retry_seconds=0.01), list[str]()
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        group.create_task(hold(limiter, log, "in"))
        for _ in range(3):  # asked again and again, with nothing active
            asked.clear()
            await asked.wait()
        assert (log, limiter.active, limiter.waiting) == ([], 0, 1)
        reason[0] = None

    assert log == ["in"]
    assert told == ["only 300 MB of memory free", None]


async def test_admission_never_holds_up_a_call_below_one_that_was_admitted() -> None:
    reasons = iter([None])
    limiter = Limiter(5, admit=lambda: next(reasons, "full"), retry_seconds=SOON)
    watch = Watch()

    async def outer() -> list[int]:
        return await gather([watch.good(1), watch.good(2)])

    with use_limiter(limiter):
        async with asyncio.timeout(SOON):
            assert await gather([outer]) == [[1, 2]]

    assert watch.peak == 1


async def test_what_admission_raises_reaches_the_call_that_was_next() -> None:
    def admit() -> str | None:
        raise Boom("no such file")

    limiter = Limiter(1, admit=admit)
    with pytest.raises(Boom):
        await hold(limiter, [], "x")

    assert (limiter.active, limiter.waiting) == (0, 0)


async def test_a_cancelled_wait_for_admission_leaves_no_timer() -> None:
    limiter = Limiter(1, admit=lambda: "never", retry_seconds=0.001)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await hold(limiter, [], "x")

    assert limiter.waiting == 0
    assert limiter._again is None


async def test_patterns_take_the_limiter_in_use() -> None:
    mine = Limiter(3)
    before = default_limiter()

    with use_limiter(mine):
        assert default_limiter() is mine

    assert default_limiter() is before


async def test_a_slot_inside_a_slot_is_the_same_one() -> None:
    async with limited(1) as limiter, limiter.slot(), limiter.slot():
        assert limiter.active == 1


async def test_a_cancelled_call_has_its_slot_back_at_once_although_all_others_are_out() -> None:
    """A strange call holds the rest for ever: a timeout around a nested pattern must not wait for it."""
    watch = Watch()

    async def patient() -> str:
        try:
            async with asyncio.timeout(0.02):
                await gather([watch.endless(), watch.endless()])
        except TimeoutError:
            with watch.on():
                await asyncio.sleep(0)
                return "went on"
        raise AssertionError

    async with limited(2):
        stranger = Watch()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(gather([stranger.endless()]))
            await stranger.until(1)
            assert await gather([patient]) == ["went on"]
            assert stranger.running == 1
            task.cancel()

    assert watch.peak == 1


async def test_tasks_that_a_call_makes_itself_share_its_slot_and_do_not_hang() -> None:
    watch = Watch()

    async def busy() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(gather([watch.good(0), watch.good(1)]))

    async with limited(1):
        await gather([busy, busy])

    assert watch.peak == 1


async def test_limiters_may_nest_in_one_order() -> None:
    outer, inner, watch = Limiter(2), Limiter(1), Watch()

    async def middle() -> list[int]:
        return await gather([watch.good(0), watch.good(1)], limiter=inner)

    async with asyncio.timeout(SOON):
        await gather([middle] * 4, limiter=outer)

    assert watch.peak == 1
    assert (outer.active, inner.active) == (0, 0)


async def test_a_slot_that_outlived_tasks_borrow_comes_back() -> None:
    """A task that a call left behind holds the call's slot until it ends."""
    limiter, watch = Limiter(1), Watch()
    left: list[asyncio.Task[object]] = []

    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:

        async def careless() -> None:
            left.append(group.create_task(gather([watch.good(0, ticks=9)])))
            await watch.until(1)

        with use_limiter(limiter):
            await gather([careless])
            assert limiter.active == 1
            await gather([watch.good(1)])

    assert limiter.active == 0
    assert watch.peak == 1


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "leave", "cancel", "tick", "resize", "cancel_and_leave"]), st.integers(0, 5)
    ),
    max_size=60,
)


@given(OPERATIONS)
@settings(max_examples=150, deadline=None)
def test_whatever_happens_the_limit_holds_and_no_slot_is_lost(operations: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        limiter, watch = Limiter(2), Watch()
        tasks: list[asyncio.Task[None]] = []
        doors: list[asyncio.Event] = []

        async def guest(door: asyncio.Event, priority: int) -> None:
            async with limiter.slot(priority=priority % 2, run=str(priority % 3)):
                with watch.on():
                    await door.wait()

        def pick(items: list[T], number: int) -> T:
            return items[number % len(items)]

        async with asyncio.TaskGroup() as group:
            for operation, number in operations:
                match operation:
                    case "ask":
                        doors.append(asyncio.Event())
                        tasks.append(group.create_task(guest(doors[-1], number)))
                    case "leave" if doors:
                        pick(doors, number).set()
                    case "cancel" if tasks:
                        pick(tasks, number).cancel()
                    case "cancel_and_leave" if tasks:
                        pick(doors, number + 1).set()
                        await ticks(number % 3)
                        pick(tasks, number).cancel()
                    case "resize":
                        limiter.resize(max(number, watch.running, limiter.active, 1))
                    case _:
                        await ticks(number)
                assert watch.running <= limiter.active <= limiter.max_concurrent
            for door in doors:
                door.set()
        assert (limiter.active, limiter.waiting, watch.running) == (0, 0, 0)

    asyncio.run(asyncio.wait_for(scenario(), SOON))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_consumer_of_a_stream_that_nests_holds_to_the_limit(
    limit: int, consumers: int, items: int, breaks: bool
) -> None:
    async def scenario() -> None:
        watch = Watch()

        async def consumer() -> int:
            seen = 0
            async with aclosing(stream(lambda n: watch.good(n, ticks=n % 4)(), range(items))) as results:
                async for _ in results:
                    with watch.on():
                        await asyncio.sleep(0)
                    await gather([watch.good(n) for n in range(2)])
                    with watch.on():
                        await asyncio.sleep(0)
                    seen += 1
                    if breaks and seen == 3:
                        break
            return seen

        async with limited(limit):
            assert await gather([consumer] * consumers) == [min(items, 3) if breaks else items] * consumers
        assert watch.peak <= limit

    asyncio.run(scenario())
