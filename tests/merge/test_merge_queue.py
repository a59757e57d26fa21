"""The merge queue against the plain one: merge one, verify, keep it or put it aside."""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.merge.queue import Apart, Conflicting, Landed, Queued, RefusedLink, Verified, run_queue

Answer = Callable[[frozenset[int]], bool]
Pairs = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Clash:
    """In conflict with these."""

    partners: tuple[int, ...]


@dataclass
class World:
    """Numbers as candidates, sets of numbers as commits, and verifications that end when and in what order we say."""

    is_good: Answer
    clashes: Pairs = frozenset()
    chance: random.Random | None = None
    asked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    waiting: dict[str, asyncio.Event] = field(default_factory=dict)
    most: int = 0
    errors: dict[str, Exception] = field(default_factory=dict)

    async def combine(self, tip: str, candidate: int) -> str | Apart[Clash]:
        partners = tuple(one for one in sorted(members(tip)) if (one, candidate) in self.clashes)
        return Apart(Clash(partners)) if partners else f"{tip} {candidate}"

    async def verify(self, commit: str) -> Verified:
        self.asked.append(commit)
        self.waiting[commit] = asyncio.Event()
        self.most = max(self.most, len(self.waiting))
        try:
            if self.chance is not None:
                await self.waiting[commit].wait()
        finally:
            del self.waiting[commit]
        if commit in self.errors:
            raise self.errors[commit]
        self.ended.append(commit)
        ok = self.is_good(members(commit))
        return Verified(ok, "" if ok else f"log of {commit}")

    @contextlib.asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """End one of what runs after the other, by chance."""

        async def go() -> None:
            while self.chance is not None:
                await asyncio.sleep(0)
                held = [one for one in self.waiting.values() if not one.is_set()]
                if held and self.chance.random() < 0.6:
                    self.chance.choice(held).set()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(go())
            yield
            task.cancel()


def members(commit: str) -> frozenset[int]:
    return frozenset(map(int, commit.split()[1:]))


def sequential(count: int, is_good: Answer, clashes: Pairs) -> Queued[int, str, Clash]:
    """The plain queue."""
    tip = "base"
    verdicts: list[Landed[int, str] | RefusedLink[int, str] | Conflicting[int, Clash]] = []
    for one in range(count):
        partners = tuple(other for other in sorted(members(tip)) if (other, one) in clashes)
        commit = f"{tip} {one}"
        if partners:
            verdicts.append(Conflicting(one, Clash(partners)))
        elif is_good(members(commit)):
            verdicts.append(Landed(one, commit))
            tip = commit
        else:
            verdicts.append(RefusedLink(one, commit, f"log of {commit}"))
    return Queued(tip, tuple(verdicts))


def ran(world: World, count: int, width: int = 1, batch: int | None = None) -> Queued[int, str, Clash]:
    """Run the queue, and see that each candidate is told once, in its order, and that nothing is left running."""
    told: list[object] = []

    async def tell(verdict: object) -> None:
        told.append(verdict)

    async def run() -> Queued[int, str, Clash]:
        async with world.going():
            done = await run_queue(
                "base", range(count), world.combine, world.verify, told=tell, width=width, batch=batch
            )
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return done

    done = asyncio.run(run())
    assert tuple(told) == done.verdicts
    assert [one.candidate for one in done.verdicts] == list(range(count))
    assert world.waiting == {}
    return done


@st.composite
def troubles(draw: st.DrawFn) -> tuple[int, frozenset[int], Pairs, Pairs]:
    """So many candidates, those that are bad alone, pairs that are bad together, and pairs that conflict."""
    count = draw(st.integers(0, 14))
    numbers = st.integers(0, max(count - 1, 0))
    pairs = st.frozensets(st.tuples(numbers, numbers).filter(lambda pair: pair[0] < pair[1]))
    return count, draw(st.frozensets(numbers, max_size=5)), draw(pairs), draw(pairs)


def good_unless(singles: frozenset[int], pairs: Pairs) -> Answer:
    return lambda these: not these & singles and not any({*pair} <= these for pair in pairs)


@settings(max_examples=150)
@given(troubles(), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 6)), st.integers())
def test_the_outcome_is_that_of_the_plain_queue_whatever_the_timing(
    trouble: tuple[int, frozenset[int], Pairs, Pairs], width: int, batch: int | None, seed: int
) -> None:
    count, singles, pairs, clashes = trouble
    is_good = good_unless(singles, pairs)
    world = World(is_good, clashes, random.Random(seed))

    done = ran(world, count, width=width, batch=batch)

    assert done == sequential(count, is_good, clashes)
    assert world.most <= width
    assert len(world.ended) == len(set(world.ended)), "a commit was verified twice"


@settings(max_examples=100)
@given(st.integers(0, 12), st.integers(2, 5), st.one_of(st.none(), st.integers(1, 4)), st.integers())
def test_even_where_later_work_mends_earlier_the_timing_decides_nothing(
    count: int, width: int, batch: int | None, seed: int
) -> None:
    """Whatever verification says: the tip was verified, and each that was refused was bad on a tip that was good."""

    def is_good(these: frozenset[int]) -> bool:
        return random.Random(f"{seed} {sorted(these)}").random() < 0.5

    plain, busy = World(is_good), World(is_good, chance=random.Random(seed))

    done = ran(busy, count, width=width, batch=batch)

    assert done == ran(plain, count, width=1, batch=batch)
    assert done.tip == "base" or is_good(members(done.tip))
    assert set(plain.asked) <= set(busy.asked)
    for one in done.verdicts:
        if isinstance(one, RefusedLink):
            before = one.tip.rpartition(" ")[0]
            assert not is_good(members(one.tip))
            assert before == "base" or is_good(members(before))
        else:
            assert isinstance(one, Landed)


@settings(max_examples=60)
@given(st.integers(1, 80), st.frozensets(st.integers(0, 79), max_size=8))
def test_bad_ones_cost_about_the_logarithm_of_all(count: int, bad: frozenset[int]) -> None:
    singles = frozenset(one for one in bad if one < count)
    world = World(good_unless(singles, frozenset()))

    ran(world, count)

    is_base_asked = 0 in singles  # is it the fault of all?
    assert len(world.asked) <= len(singles) * (math.ceil(math.log2(count)) + 1) + 1 + is_base_asked
    if not singles:
        assert len(world.asked) == 1


def test_on_a_base_that_is_bad_itself_each_is_tried_once_and_who_mends_it_lands() -> None:
    bad, mended = World(lambda these: False), World(lambda these: 60 in these and 70 not in these)

    done, after = ran(bad, 100, width=1), ran(mended, 100, width=1)

    assert done.base_log == "log of base"
    assert len(bad.asked) <= 100 + math.ceil(math.log2(100)) + 2
    assert after.base_log == "log of base"
    assert sorted(members(after.tip)) == [one for one in range(60, 100) if one != 70]


def test_two_that_are_good_alone_and_bad_together_cost_the_second_its_place() -> None:
    done = ran(World(good_unless(frozenset(), frozenset({(1, 3)}))), 5)

    assert done.tip == "base 0 1 2 4"
    assert done.verdicts[3] == RefusedLink(3, "base 0 1 2 3", "log of base 0 1 2 3")


def test_a_conflict_with_somebody_who_is_refused_is_none() -> None:
    world = World(good_unless(frozenset({1}), frozenset()), clashes=frozenset({(1, 2), (0, 3)}))

    done = ran(world, 4)

    assert done.tip == "base 0 2"
    assert done.verdicts[3] == Conflicting(3, Clash((0,)))


def test_what_changes_nothing_needs_no_verification() -> None:
    async def same(tip: str, candidate: int) -> str | Apart[Clash]:
        return tip

    world = World(lambda these: False)
    done = asyncio.run(run_queue("base", range(3), same, world.verify, width=2))

    assert done.tip == "base"
    assert world.asked == []


def test_verifications_run_ahead_of_each_other_within_the_width() -> None:
    """One batch each: four prefixes run at once, and what stood on a bad one is thrown away."""
    world = World(good_unless(frozenset({1}), frozenset()), chance=random.Random(1))

    async def run() -> Queued[int, str, Clash]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run_queue("base", range(5), world.combine, world.verify, width=4, batch=1))
            await turns()
            assert sorted(world.waiting) == ["base 0", "base 0 1", "base 0 1 2", "base 0 1 2 3"]
            world.waiting["base 0 1 2"].set()
            world.waiting["base 0 1"].set()
            await turns()
            assert "base 0 1 2 3 4" not in world.waiting  # what is decided waits for the first
            world.waiting["base 0"].set()
            await turns()
            assert sorted(world.waiting) == ["base 0 2", "base 0 2 3", "base 0 2 3 4"]
            for event in world.waiting.values():
                event.set()
        return task.result()

    assert asyncio.run(run()).tip == "base 0 2 3 4"


@pytest.mark.parametrize("width", [1, 3])
def test_cancelled_it_leaves_nothing_running(width: int) -> None:
    world = World(lambda these: True, chance=random.Random(1))

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run_queue("base", range(9), world.combine, world.verify, width=width))
            await turns()
            assert len(world.waiting) == width
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert world.waiting == {}


def test_a_verification_that_breaks_ends_the_queue_and_one_nobody_asks_for_does_not() -> None:
    broken = World(lambda these: True, errors={"base 0 1 2": ValueError("no disk")})
    unasked = World(lambda these: True, chance=random.Random(3), errors={"base 0": ValueError("no disk")})

    with pytest.raises(ValueError, match="no disk"):
        asyncio.run(run_queue("base", range(3), broken.combine, broken.verify))
    assert ran(unasked, 3, width=3).tip == "base 0 1 2"


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)
