"""What is specific to single patterns."""

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest
import stamina

from shoal.errors import BadInput, QuorumMissed, Refused, TimedOut, UnknownName
from shoal.patterns import Err, Ok, balance, gather, map, quorum, race, retrying, settled, stages, timeout
from tests.patterns.acting import Boom, Watch, limited

Pattern = Callable[[list[Callable[[], Awaitable[int]]]], Awaitable[object]]


async def test_what_others_failed_with_is_noted_on_the_first_failure() -> None:
    async def untidy() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            raise Boom("while cleaning up")
        return 0

    async with limited(3):
        with pytest.raises(Boom, match="first") as raised:
            await gather([untidy, Watch().bad(Boom("first"), ticks=3)])

    assert raised.value.__notes__ == ["call 0 failed too: Boom('while cleaning up')"]


async def test_calls_may_come_from_a_lazy_source() -> None:
    async with limited(2):
        assert await gather(Watch().good(n) for n in range(9)) == list(range(9))


async def test_a_race_is_won_by_the_first_success_not_the_first_end() -> None:
    watch = Watch()

    async with limited(4):
        calls = [watch.bad(Boom("early")), watch.good(-1, ticks=2), watch.good(5, ticks=8), watch.endless()]
        assert await race(calls, accept=lambda value: value > 0) == 5

    assert watch.running == 0


async def test_a_quorum_returns_at_once_and_ends_the_rest() -> None:
    watch = Watch()

    async with limited(5):
        assert await quorum([watch.endless(), watch.good(1, ticks=4), watch.bad(Boom()), watch.good(3)], 2) == [1, 3]

    assert watch.running == 0


@pytest.mark.parametrize("pattern", [race, partial(quorum, n=1)])
async def test_who_is_stopped_is_cancelled_once_whoever_ends_meanwhile(pattern: Pattern) -> None:
    """To be cancelled again would cut short who is putting things in order: a session would lose its work."""
    watch, cancels = Watch(), 0

    async def first() -> int:
        await watch.until(2)
        return 1

    async def good_all_the_same() -> int:
        with watch.on(), contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 2

    async def orderly() -> int:
        nonlocal cancels
        with watch.on():
            for ticks in (10**9, 20, 20):
                try:
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                except asyncio.CancelledError:
                    cancels += 1
        return 3

    async with limited(3):
        await pattern([first, good_all_the_same, orderly])

    assert cancels == 1


@pytest.mark.parametrize("n", [0, 5, -1])
async def test_a_quorum_of_none_or_of_too_many_starts_nothing(n: int) -> None:
    watch = Watch()

    if n == 0:
        assert await quorum([watch.endless()] * 4, 0) == []
    else:
        with pytest.raises((QuorumMissed, BadInput)):
            await quorum([watch.endless()] * 4, n)

    assert watch.begun == []


async def test_a_quorum_of_a_lazy_source_is_missed_at_its_end() -> None:
    async with limited(2):
        with pytest.raises(QuorumMissed, match="3 calls had to succeed, but 2 did"):
            await quorum((Watch().good(n) for n in range(2)), 3)


async def test_each_stage_gets_what_the_former_found() -> None:
    async def double(number: int) -> int:
        return 2 * number

    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    async with limited(2):
        assert await stages(double, [double, double, double], total, initial=1) == 12
        assert await stages(initial="nothing to do") == "nothing to do"


async def test_no_stage_starts_after_one_that_failed() -> None:
    watch = Watch()

    with pytest.raises(Boom):
        await stages(lambda _: watch.bad(Boom())(), lambda _: watch.good(1)())

    assert len(watch.begun) == 1


async def test_the_least_loaded_agent_gets_the_next_item() -> None:
    watch, done = Watch(), Counter[str]()
    door = asyncio.Event()

    async def slow(_: int) -> str:
        done["slow"] += 1
        await door.wait()
        return "slow"

    async def fast(item: int) -> str:
        done["fast"] += 1
        if item == 9:
            door.set()
        return "fast"

    async with limited(2):
        results = await balance(range(10), {"slow": slow, "fast": fast})

    assert done == {"slow": 1, "fast": 9}
    assert results[0] == Ok("slow")
    assert watch.running == 0


@pytest.mark.parametrize("strategy", ["least_loaded", "round_robin"])
async def test_weights_share_the_work_out(strategy: str) -> None:
    async def big(_: int) -> str:
        return "big"

    async def small(_: int) -> str:
        return "small"

    async with limited(1):
        results = await balance(range(12), {"small": small, "big": big}, weights={"big": 3}, strategy=strategy)  # type: ignore[arg-type]

    assert Counter(one.value for one in results if isinstance(one, Ok)) == (
        {"big": 9, "small": 3} if strategy == "round_robin" else {"big": 12}
    )


async def test_agents_take_turns() -> None:
    async def one(_: int) -> int:
        return 1

    async def two(_: int) -> int:
        return 2

    async with limited(1):
        assert await balance(range(4), {"one": one, "two": two}, strategy="round_robin") == [Ok(1), Ok(2), Ok(1), Ok(2)]


async def test_a_balance_without_agents_or_with_strange_weights_is_refused() -> None:
    async def one(_: int) -> int:
        return 1

    with pytest.raises(BadInput):
        await balance([1], {})
    with pytest.raises(UnknownName, match="did you mean 'debugger'"):
        await balance([1], {"debugger": one}, weights={"debuger": 1})
    with pytest.raises(BadInput, match="above 0"):
        await balance([1], {"one": one}, weights={"one": 0})


async def test_a_retry_tells_each_new_attempt_and_raises_the_last_error_itself() -> None:
    told: list[tuple[int, str]] = []
    errors = [Boom("1"), Boom("2"), Boom("3")]
    left = iter(errors)

    async def failing() -> int:
        raise next(left)

    with pytest.raises(Boom) as raised, stamina.set_testing(True, attempts=3):
        await retrying(failing, attempts=9, on_retry=lambda number, error: told.append((number, str(error))))

    assert raised.value is errors[2]
    assert told == [(2, "1"), (3, "2")]


@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
async def test_what_is_not_to_be_retried_is_raised_at_once(error: type[BaseException]) -> None:
    runs = []

    async def failing() -> int:
        runs.append(1)
        raise error

    with pytest.raises(error), stamina.set_testing(True, attempts=3):
        await retrying(failing, retry_on=(ValueError, OSError))

    assert len(runs) == 1


async def test_a_value_that_is_a_failure_is_retried() -> None:
    values: Iterator[int] = iter([0, 0, 7, 0, 0, 0])

    async def value() -> int:
        return next(values)

    with stamina.set_testing(True, attempts=3):
        assert await retrying(value, retry_on=KeyError, accept=bool) == 7
        with pytest.raises(Refused) as refused:
            await retrying(value, accept=bool)

    assert refused.value.value == 0


async def test_a_retry_holds_no_slot_while_it_waits() -> None:
    from shoal.patterns import Retry

    order: list[str] = []

    async def flaky() -> None:
        order.append("flaky")
        if len(order) == 1:
            raise Boom

    async def other() -> None:
        order.append("other")

    async with limited(1):
        await settled([flaky, other], limit=2, retry=Retry(attempts=2, wait_initial=0.05, jitter=0))

    assert order == ["flaky", "other", "flaky"]


async def test_a_timeout_has_ended_what_it_timed() -> None:
    watch = Watch()

    with pytest.raises(TimedOut, match=r"0\.02 s"):
        await timeout(watch.endless(), 0.02)
    with pytest.raises(TimeoutError, match="its own"):
        await timeout(watch.bad(TimeoutError("its own")), 30)

    assert watch.running == 0


async def test_a_timeout_counts_from_the_start_of_a_call_not_from_its_place_in_the_line() -> None:
    async def napping(_: int) -> int:
        await asyncio.sleep(0.05)
        return 1

    async with limited(1):
        assert await map(napping, range(5), timeout=0.2) == [Ok(1)] * 5


async def test_errors_are_told_with_their_place() -> None:
    async with limited(2):
        outcomes = await settled([Watch().good(0), Watch().bad(Boom())])

    assert [(type(one), one.index) for one in outcomes] == [(Ok, 0), (Err, 1)]


def test_importing_the_patterns_is_light() -> None:
    script = "import sys, shoal.patterns; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert {"stamina", "tenacity", "pydantic"} & set(done.stdout.split()) == set()


def test_a_retry_says_nothing_on_stderr() -> None:
    script = (
        "import asyncio; from shoal.patterns import retrying\n"
        "async def f(): return 0\n"
        "try: asyncio.run(retrying(f, attempts=2, wait_initial=0.01, jitter=0, accept=bool))\n"
        "except Exception: pass"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("", "")
