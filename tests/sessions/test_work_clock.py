"""The clock of an agent's time: it stands while the agent is frozen."""

import asyncio

import pytest

from shoal.sessions.clocks import WorkClock


async def test_seconds_pass_as_long_as_the_clock_runs() -> None:
    clock = WorkClock()
    before = clock.now()

    await asyncio.wait_for(clock.sleep(0.05), 10)

    assert clock.now() - before >= 0.05


async def test_a_clock_that_stands_keeps_what_is_left() -> None:
    clock = WorkClock()
    sleeping = asyncio.ensure_future(clock.sleep(0.1))
    clock.pause()
    stood = clock.now()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(sleeping), 0.3)
    assert clock.now() == stood
    assert clock.is_paused

    clock.resume()
    await asyncio.wait_for(sleeping, 10)

    assert not clock.is_paused
    assert clock.now() - stood >= 0.09
