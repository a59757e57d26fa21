"""Pools: warm, bounded, healthy, and closed at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.patterns import AgentPool, Err, gather, settled
from tests.patterns.acting import SOON, Boom, limited


class Agent:
    """An agent that knows whether it lives, and how often it was used."""

    def __init__(self, farm: "Farm") -> None:
        self.farm = farm
        self.is_well = True

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.farm.alive -= 1
        self.farm.closed += 1


class Farm:
    """Where agents are made, counted."""

    def __init__(self) -> None:
        self.alive = self.made = self.closed = self.most = 0

    async def make(self) -> Agent:
        self.alive += 1
        self.made += 1
        self.most = max(self.most, self.alive)
        agent = Agent(self)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.alive -= 1
            raise
        return agent

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Agent]:
        task = asyncio.current_task()
        agent = await self.make()
        try:
            yield agent
        finally:
            assert asyncio.current_task() is task, "closed by the task that made it"
            await agent.close()


async def use(pool: AgentPool[Agent], times: int = 1) -> list[Agent]:
    used = []
    for _ in range(times):
        async with pool.agent() as agent:
            used.append(agent)
            await asyncio.sleep(0)
    return used


@pytest.mark.parametrize("way", ["make", "opened"])
async def test_agents_are_made_when_needed_kept_warm_and_closed_at_the_end(way: str) -> None:
    farm = Farm()

    async with limited(5), AgentPool(getattr(farm, way), size=3) as pool:
        assert farm.made == 0
        first, again = await use(pool, 2)
        assert first is again
        await gather([lambda: use(pool, 5)] * 5)
        assert (farm.most, farm.made) == (3, 3)

    assert (farm.alive, farm.closed) == (0, 3)


async def test_an_agent_is_closed_after_so_many_uses() -> None:
    farm = Farm()

    async with limited(1), AgentPool(farm.make, size=1, max_uses=2) as pool:
        one, two, three = await use(pool, 3)

    assert one is two
    assert two is not three
    assert (farm.made, farm.most) == (2, 1)


@pytest.mark.parametrize("error", [Boom, asyncio.CancelledError])
async def test_an_agent_whose_user_failed_is_not_handed_out_again(error: type[BaseException]) -> None:
    farm = Farm()

    async with limited(1), AgentPool(farm.make, size=1) as pool:
        with pytest.raises(error):
            async with pool.agent() as broken:
                raise error
        (other,) = await use(pool)

    assert other is not broken
    assert farm.most == 1


@pytest.mark.parametrize("raises", [False, True])
async def test_an_unhealthy_agent_is_replaced_before_it_is_handed_out(raises: bool) -> None:
    farm = Farm()

    async def healthy(agent: Agent) -> bool:
        if raises and not agent.is_well:
            raise Boom
        return agent.is_well

    async with limited(1), AgentPool(farm.make, size=1, healthy=healthy) as pool:
        (sick,) = await use(pool)
        sick.is_well = False
        (well,) = await use(pool)

    assert well is not sick
    assert farm.most == 1


async def test_an_agent_that_cannot_be_made_is_the_askers_error_and_costs_no_place() -> None:
    farm, failing = Farm(), [True, True]

    async def make() -> Agent:
        if failing:
            failing.pop()
            raise Boom("no model")
        return await farm.make()

    async with limited(1), AgentPool(make, size=1) as pool:
        for _ in range(2):
            with pytest.raises(Boom, match="no model"):
                await use(pool)
        await use(pool)


async def test_what_closing_raises_is_warned_of_at_the_end() -> None:
    async def make() -> object:
        return object()

    def close(_: object) -> None:
        raise Boom("will not close")

    with pytest.warns(RuntimeWarning, match="will not close"):
        async with limited(1), AgentPool(make, size=1, close=close) as pool, pool.agent():
            pass


async def test_agents_can_be_fetched_and_released_by_hand() -> None:
    farm = Farm()

    async with limited(1), AgentPool(farm.make, size=2) as pool:
        one, two = await pool.get_agent(), await pool.get_agent()
        async with asyncio.TaskGroup() as group:
            third = group.create_task(pool.get_agent())
            await asyncio.sleep(0)
            await pool.release(one)
        assert third.result() is one
        with pytest.raises(BadInput, match="not out of this pool"):
            await pool.release(Agent(farm))
        await pool.release(two)
        await pool.cleanup()
        assert (farm.alive, farm.closed) == (1, 1), "the one that is out is closed when it comes back"
        await pool.release(one)

    assert farm.alive == 0


async def test_a_pool_that_was_left_says_so() -> None:
    farm = Farm()
    pool = AgentPool(farm.make, size=1)

    async with pool:
        await pool.get_agent()
    with pytest.raises(BadInput, match="async with"):
        await pool.get_agent()

    assert farm.alive == 0


async def test_who_waits_when_a_pool_closes_is_told() -> None:
    farm = Farm()

    async with limited(4), asyncio.TaskGroup() as group, AgentPool(farm.make, size=1) as pool:
        await pool.get_agent()
        waiting = [group.create_task(settled([pool.get_agent])) for _ in range(3)]
        while farm.made < 1 or len(pool._places._waiters or ()) < 3:
            await asyncio.sleep(0)

    outcomes = [outcome for task in waiting for outcome in task.result()]
    assert [isinstance(one, Err) and isinstance(one.error, BadInput) for one in outcomes] == [True] * 3


async def test_asking_a_pool_from_inside_its_own_agent_is_refused() -> None:
    """It would wait for itself: the one agent is out, held by who asks."""
    farm = Farm()

    async with limited(4), AgentPool(farm.make, size=1) as pool, pool.agent():
        with pytest.raises(BadInput, match="second pool"):
            await gather([lambda: use(pool)])


async def test_a_pool_shares_a_limiter_of_one_with_the_calls_of_its_agents() -> None:
    farm = Farm()

    async def call() -> list[int]:
        async with pool.agent():
            return await gather([one, one])

    async def one() -> int:
        return 1

    async with limited(1), AgentPool(farm.make, size=1) as pool:
        assert await gather([call] * 4) == [[1, 1]] * 4
        async with pool.agent():
            assert await asyncio.wait_for(gather([one, one]), SOON) == [1, 1]


async def test_who_has_an_agent_goes_on_although_all_others_wait_for_it() -> None:
    """The holder is no call of a pattern: without a slot of its own it would wait for those that wait for it."""
    farm, goes_on = Farm(), asyncio.Event()

    async def holder() -> list[list[Agent]]:
        async with pool.agent():
            await goes_on.wait()
            return await gather([nothing, nothing])

    async def nothing() -> list[Agent]:
        return []

    async with limited(1), AgentPool(farm.make, size=1) as pool, asyncio.TaskGroup() as group:
        held = group.create_task(holder())
        while not farm.made:
            await asyncio.sleep(0)
        group.create_task(gather([lambda: use(pool)] * 3))
        for _ in range(10):
            await asyncio.sleep(0)
        goes_on.set()

    assert held.result() == [[], []]


async def test_a_pool_may_be_opened_again_and_is_as_small_as_before() -> None:
    farm = Farm()
    pool = AgentPool(farm.make, size=2)

    for _ in range(2):
        async with limited(9), pool:
            await gather([lambda: use(pool, 3)] * 6)

    assert (farm.most, farm.made, farm.alive) == (2, 4, 0)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_waiting_can_be_cancelled_at_any_time_without_losing_an_agent(
    users: list[tuple[int, bool]], size: int, max_uses: int
) -> None:
    async def scenario() -> None:
        farm = Farm()
        async with limited(4), AgentPool(farm.make, size=size, max_uses=max_uses) as pool:
            async with asyncio.TaskGroup() as group:
                for ticks, is_cancelled in users:
                    task = group.create_task(use(pool, 2))
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                    if is_cancelled:
                        task.cancel()
            both = [await pool.get_agent() for _ in range(size)]
            assert len(set(both)) == size, "every place is there"
        assert farm.alive == 0
        assert farm.most <= size

    asyncio.run(scenario())
