"""What holds for each pattern: how it ends, and that nothing continues afterwards."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import AllFailed, BadInput, CallCancelled, QuorumMissed, TimedOut
from shoal.patterns import Cancelled, Ok, Progress, Retry
from tests.patterns.acting import EVERY, RAISING, SOON, TELLING, Boom, Watch, limited, plain

EACH = pytest.mark.parametrize("name", EVERY)


@EACH
@pytest.mark.parametrize("limit", [1, 2, None])
async def test_a_pattern_gives_what_its_calls_gave(name: str, limit: int | None) -> None:
    watch = Watch()

    async with limited(4):
        results = plain(await EVERY[name]([watch.good(n, ticks=5 - n) for n in range(4)], limit=limit))

    assert results in ([[0], [1], [2], [3]] if name == "race" else [[0, 1, 2, 3]])
    assert watch.running == 0
    assert watch.peak == (limit or 4)


@EACH
async def test_the_limiter_holds_where_the_pattern_has_a_wider_limit(name: str) -> None:
    watch = Watch()

    async with limited(2):
        await EVERY[name]([watch.good(n) for n in range(9)], limit=9)

    assert watch.peak == 2


@EACH
async def test_nothing_to_do_is_nothing_done(name: str) -> None:
    async with limited(2):
        if name == "race":
            with pytest.raises(AllFailed, match="none of 0"):
                await EVERY[name]([])
        else:
            assert await EVERY[name]([]) == []


@EACH
async def test_one_call_is_enough(name: str) -> None:
    async with limited(1):
        assert plain(await EVERY[name]([Watch().good(7)])) == [7]


@pytest.mark.parametrize("name", RAISING)
async def test_the_first_failure_is_raised_itself_after_the_others_ended(name: str) -> None:
    watch, boom = Watch(), Boom("first")

    async with limited(4):
        with pytest.raises(Boom) as raised:
            await RAISING[name]([watch.endless(), watch.bad(boom, ticks=3), watch.endless(), watch.endless()])

    assert raised.value is boom
    assert "raise error" in "".join(traceback.format_exception(boom)), "the traceback of the call is kept"
    assert watch.running == 0


@pytest.mark.parametrize("name", TELLING)
async def test_a_failure_is_told_in_its_place(name: str) -> None:
    watch, boom = Watch(), Boom("second")

    async with limited(2):
        results = plain(await TELLING[name]([watch.good(0), watch.bad(boom), watch.good(2)]))

    assert results == [0, boom, 2]


async def test_a_race_goes_on_past_a_failure_and_a_quorum_does_not_without_enough() -> None:
    watch, boom = Watch(), Boom("first")

    async with limited(4):
        assert await EVERY["race"]([watch.bad(boom), watch.good(1, ticks=9), watch.endless()]) == [1]
        with pytest.raises(QuorumMissed) as missed:
            await EVERY["quorum"]([watch.bad(boom), watch.good(1, ticks=9), watch.endless()])

    assert missed.value.errors == (boom,)
    assert watch.running == 0


@EACH
async def test_when_all_fail_every_failure_is_told(name: str) -> None:
    watch, booms = Watch(), [Boom(str(n)) for n in range(3)]

    async with limited(1):
        if name in TELLING:
            assert plain(await EVERY[name]([watch.bad(boom) for boom in booms])) == booms
            return
        with pytest.raises((Boom, AllFailed, QuorumMissed)) as raised:
            await EVERY[name]([watch.bad(boom) for boom in booms])

    assert raised.value is booms[0] or getattr(raised.value, "errors", ()) in [tuple(booms), (booms[0],)]
    assert (name == "race") == isinstance(raised.value, AllFailed)


@EACH
async def test_cancelling_from_outside_ends_every_call_first(name: str) -> None:
    watch = Watch()

    async with limited(3):
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(_listed(EVERY[name], [watch.endless() for _ in range(5)]))
                await watch.until(3)
                task.cancel()
                await asyncio.wait([task])
                assert watch.running == 0
                await task

    assert len(watch.begun) == len(watch.ended) == 3


async def _listed(runner: Callable[..., Any], calls: list[Any]) -> list[Any]:
    return list(await runner(calls))


@EACH
async def test_a_timeout_really_ends_the_call_and_only_it(name: str) -> None:
    watch = Watch()
    calls = [watch.good(0), watch.endless(), watch.good(2)]

    async with limited(3):
        if name in TELLING:
            zero, late, two = plain(await EVERY[name](calls, timeout=0.05))
            assert (zero, two) == (0, 2)
            assert isinstance(late, TimedOut)
        elif name == "race":
            with pytest.raises(AllFailed) as failed:
                await EVERY[name]([watch.endless()], timeout=0.05)
            assert isinstance(failed.value.errors[0], TimedOut)
        else:
            with pytest.raises((TimedOut, QuorumMissed)):
                await EVERY[name](calls, timeout=0.05)

    assert watch.running == 0


@EACH
async def test_a_deadline_ends_the_whole_and_keeps_what_is_done(name: str) -> None:
    watch = Watch()
    calls = [watch.good(0), watch.endless(), watch.good(2), watch.endless(), watch.good(4)]

    async with limited(2):
        if name in TELLING:
            results = plain(await EVERY[name](calls, deadline=0.5))
            assert [one for one in results if isinstance(one, int)] == [0, 2]
            # A list is as long as its input; a stream ends with what was begun, and an ordered one waits for its second.
            ending = [True, True] if name in {"settled", "map", "balance"} else [True] * (name != "ordered")
            assert [isinstance(one, TimedOut) for one in results[1:]] == [True, False, *ending]
        else:
            with pytest.raises(TimedOut, match=r"0\.5 s"):
                await EVERY[name]([watch.endless()] * 3, deadline=0.5)

    assert watch.running == 0


@EACH
async def test_a_callback_that_raises_harms_no_work(name: str) -> None:
    told = []

    def broken(progress: Progress) -> None:
        told.append(progress)
        raise Boom("callback")

    async with limited(2):
        with pytest.warns(RuntimeWarning, match="callback"):
            results = plain(await EVERY[name]([Watch().good(n) for n in range(3)], progress=broken))

    assert results in ([[0], [1], [2]] if name == "race" else [[0, 1, 2]])
    assert len(told) == 1


@pytest.mark.parametrize("name", sorted(EVERY.keys() - {"race"}))
async def test_progress_is_told_after_each_call(name: str) -> None:
    told: list[Progress] = []

    async def heard(progress: Progress) -> None:
        await asyncio.sleep(0)
        told.append(progress)

    async with limited(2):
        await EVERY[name]([Watch().good(n) for n in range(3)], progress=heard)

    assert [(one.completed, one.failed, one.total) for one in told] == [(1, 0, 3), (2, 0, 3), (3, 0, 3)]
    assert told[-1].eta == 0


@EACH
async def test_a_call_that_cancels_itself_has_not_failed_but_neither_succeeded(name: str) -> None:
    async def stopped() -> int:
        raise asyncio.CancelledError

    async with limited(2):
        if name in TELLING:
            assert await EVERY[name]([stopped, Watch().good(1)]) == [Cancelled(), Ok(1)]
        else:
            with pytest.raises((CallCancelled, AllFailed, QuorumMissed)):
                await EVERY[name]([stopped])


@EACH
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through(name: str, error: type[BaseException]) -> None:
    watch = Watch()

    async def interrupted() -> int:
        await watch.until(1)
        raise error

    with pytest.raises(error):
        asyncio.run(_listed(EVERY[name], [watch.endless(), interrupted]))

    assert watch.running == 0


@EACH
@pytest.mark.parametrize("option", ["limit", "timeout", "deadline"])
async def test_a_bound_of_nothing_is_refused(name: str, option: str) -> None:
    with pytest.raises(BadInput, match=f"{option} must be above 0"):
        await EVERY[name]([], **{option: 0})


@EACH
async def test_only_what_failed_is_run_again(name: str) -> None:
    runs = {0: 0, 1: 0}

    async def flaky() -> int:
        runs[0] += 1
        if runs[0] < 3:
            raise Boom
        return 0

    async def steady() -> int:
        runs[1] += 1
        return 1

    calls = [flaky] if name == "race" else [flaky, steady]
    async with limited(2):
        retry = Retry(attempts=3, wait_initial=0.001, wait_max=0.001, jitter=0)
        assert plain(await EVERY[name](calls, retry=retry)) == list(range(len(calls)))

    assert runs == {0: 3, 1: len(calls) - 1}


@EACH
async def test_a_refused_value_is_a_failure(name: str) -> None:
    async with limited(2):
        calls = [Watch().good(1), Watch().good(2)]
        if name in TELLING:
            refused, two = plain(await EVERY[name](calls, accept=lambda value: value > 1))
            assert getattr(refused, "value", None) == 1
            assert two == 2
        elif name == "race":
            assert await EVERY[name](calls, accept=lambda value: value > 1) == [2]
        else:
            with pytest.raises(Exception, match="not accepted: 1"):
                await EVERY[name](calls, accept=lambda value: value > 1)


@EACH
async def test_a_call_may_nest_the_pattern_in_itself_under_a_limit_of_one(name: str) -> None:
    watch = Watch()

    async def outer() -> int:
        with watch.on():
            await asyncio.sleep(0)
        inner = await asyncio.wait_for(_listed(EVERY[name], [watch.good(n) for n in range(3)]), SOON)
        with watch.on():
            await asyncio.sleep(0)
        return len(inner)

    async with limited(1):
        results = plain(await EVERY[name]([outer, outer, outer]))

    assert set(results) == {1 if name == "race" else 3}
    assert watch.peak == 1
