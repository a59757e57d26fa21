"""The merge queue against a simple one: merge one, verify, keep it or leave it out."""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.merge.candidates import Candidate
from shoal.merge.commits import Chain
from shoal.merge.queue import QueueResult, run_queue
from shoal.merge.tree_check import Verified
from shoal.model.merge import MergeResult, MergeStatus, Strategy

Answer = Callable[[frozenset[int]], bool]
Pairs = frozenset[tuple[int, int]]

START = Chain(
    run="run", form=Strategy.AUTO, start="", origin="", tip="", history_commit="", tree="base", results=(), refused=()
)


@dataclass
class World:
    """Numbers as candidates, sets of numbers as trees, and verifications that end when and in what order we say."""

    is_good: Answer
    clashes: Pairs = frozenset()
    chance: random.Random | None = None
    asked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    waiting: dict[str, asyncio.Event] = field(default_factory=dict)
    most: int = 0
    errors: dict[str, Exception] = field(default_factory=dict)

    async def add(self, chain: Chain, candidate: Candidate) -> Chain:
        return add(chain, int(candidate.session), self.clashes)

    async def verify(self, chain: Chain) -> Verified:
        tree = chain.tree
        self.asked.append(tree)
        self.waiting[tree] = asyncio.Event()
        self.most = max(self.most, len(self.waiting))
        try:
            if self.chance is not None:
                await self.waiting[tree].wait()
        finally:
            del self.waiting[tree]
        if tree in self.errors:
            raise self.errors[tree]
        self.ended.append(tree)
        ok = self.is_good(members(tree))
        return Verified(ok, "" if ok else f"log of {tree}")

    @contextlib.asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """End one of the running verifications after the other, by chance."""

        async def go() -> None:
            while self.chance is not None:
                await asyncio.sleep(0)
                held = [event for event in self.waiting.values() if not event.is_set()]
                if held and self.chance.random() < 0.6:
                    self.chance.choice(held).set()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(go())
            yield
            task.cancel()


def candidates(count: int) -> Sequence[Candidate]:
    return [Candidate(session=str(number), source="") for number in range(count)]


def add(chain: Chain, number: int, clashes: Pairs) -> Chain:
    """Add a number to a chain as the product does: a conflict is among what the chain refused."""
    result = MergeResult(session=str(number), status=MergeStatus.MERGED)
    partners = [other for other in sorted(members(chain.tree)) if (other, number) in clashes]
    if partners:
        return chain.without(replace(result, status=MergeStatus.CONFLICTS, message=f"with {partners}"))
    return replace(chain, tree=f"{chain.tree} {number}", results=(*chain.results, result))


def members(tree: str) -> frozenset[int]:
    return frozenset(map(int, tree.split()[1:]))


def plain_queue(count: int, is_good: Answer, clashes: Pairs) -> tuple[Chain, list[tuple[str, str]]]:
    """Merge one, verify, keep it or leave it out: the chain, and who was refused with what log."""
    chain = START
    refused: list[tuple[str, str]] = []
    for number in range(count):
        after = add(chain, number, clashes)
        if after.tree == chain.tree or is_good(members(after.tree)):
            chain = after
        else:
            refused.append((str(number), f"log of {after.tree}"))
    return chain, refused


def refusals(result: QueueResult) -> list[tuple[str, str]]:
    return [(refusal.candidate.session, refusal.log) for refusal in result.refusals]


def ran(world: World, count: int, width: int = 1) -> QueueResult:
    """Run the queue, and see that nothing is left running and that each candidate has one outcome."""

    async def run() -> QueueResult:
        async with world.going():
            result = await run_queue(START, candidates(count), world.add, world.verify, width=width)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    result = asyncio.run(run())
    outcomes = [outcome.session for outcome in (*result.chain.results, *result.chain.refused)]
    outcomes += [session for session, _ in refusals(result)]
    assert sorted(outcomes, key=int) == [str(number) for number in range(count)]
    assert world.waiting == {}
    return result


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
@given(troubles(), st.integers(1, 5), st.integers())
def test_the_outcome_is_that_of_the_plain_queue_whatever_the_timing(
    trouble: tuple[int, frozenset[int], Pairs, Pairs], width: int, seed: int
) -> None:
    count, singles, pairs, clashes = trouble
    is_good = good_unless(singles, pairs)
    world = World(is_good, clashes, random.Random(seed))

    result = ran(world, count, width=width)

    assert (result.chain, refusals(result)) == plain_queue(count, is_good, clashes)
    assert world.most <= width
    assert len(world.ended) == len(set(world.ended)), "a tree was verified twice"


@settings(max_examples=100)
@given(st.integers(0, 12), st.integers(2, 5), st.integers())
def test_even_where_later_work_mends_earlier_the_timing_decides_nothing(count: int, width: int, seed: int) -> None:
    """Whatever verification says: the tip was verified, and each that was refused was bad on a tip that was good."""

    def is_good(these: frozenset[int]) -> bool:
        return random.Random(f"{seed} {sorted(these)}").random() < 0.5

    plain, busy = World(is_good), World(is_good, chance=random.Random(seed))

    result = ran(busy, count, width=width)

    assert result == ran(plain, count, width=1)
    assert result.chain.tree == "base" or is_good(members(result.chain.tree))
    assert set(plain.asked) <= set(busy.asked)
    for refusal in result.refusals:
        before = refusal.chain.tree.rpartition(" ")[0]
        assert not is_good(members(refusal.chain.tree))
        assert before == "base" or is_good(members(before))


@settings(max_examples=60)
@given(st.integers(1, 80), st.frozensets(st.integers(0, 79), max_size=8))
def test_bad_ones_cost_about_the_logarithm_of_all(count: int, bad: frozenset[int]) -> None:
    singles = frozenset(number for number in bad if number < count)
    world = World(good_unless(singles, frozenset()))

    ran(world, count)

    is_base_asked = 0 in singles  # is it the fault of all?
    assert len(world.asked) <= len(singles) * (math.ceil(math.log2(count)) + 1) + 1 + is_base_asked
    if not singles:
        assert len(world.asked) == 1


def test_on_a_base_that_is_bad_itself_each_is_tried_once_and_who_mends_it_lands() -> None:
    bad, mended = World(lambda these: False), World(lambda these: 60 in these and 70 not in these)

    result, after = ran(bad, 100, width=1), ran(mended, 100, width=1)

    assert result.base_log == "log of base"
    assert len(bad.asked) <= 100 + math.ceil(math.log2(100)) + 2
    assert after.base_log == "log of base"
    assert sorted(members(after.chain.tree)) == [number for number in range(60, 100) if number != 70]


def test_a_conflict_before_the_first_refusal_does_not_hide_that_the_base_is_bad() -> None:
    """The conflict leaves the tree as it was, so its good verdict is only the one that was assumed."""

    async def add_none_at_first(chain: Chain, candidate: Candidate) -> Chain:
        if candidate.session == "0":
            return chain.without(MergeResult(session="0", status=MergeStatus.CONFLICTS))
        return await world.add(chain, candidate)

    world = World(lambda these: False)
    result = asyncio.run(run_queue(START, candidates(2), add_none_at_first, world.verify))

    assert result.base_log == "log of base"
    assert refusals(result) == [("1", "log of base 1")]


def test_two_that_are_good_alone_and_bad_together_cost_the_second_its_place() -> None:
    result = ran(World(good_unless(frozenset(), frozenset({(1, 3)}))), 5)

    assert result.chain.tree == "base 0 1 2 4"
    assert refusals(result) == [("3", "log of base 0 1 2 3")]


def test_a_conflict_with_somebody_who_is_refused_is_none() -> None:
    world = World(good_unless(frozenset({1}), frozenset()), clashes=frozenset({(1, 2), (0, 3)}))

    result = ran(world, 4)

    assert result.chain.tree == "base 0 2"
    assert [refused.message for refused in result.chain.refused] == ["with [0]"]


def test_what_changes_nothing_needs_no_verification() -> None:
    async def same(chain: Chain, candidate: Candidate) -> Chain:
        return chain

    world = World(lambda these: False)
    result = asyncio.run(run_queue(START, candidates(3), same, world.verify, width=2))

    assert result.chain.tree == "base"
    assert world.asked == []


def test_verifications_run_ahead_of_each_other_within_the_width() -> None:
    """All at once, and the halves that are needed if that is bad; what turns out not to be needed is cancelled."""
    world = World(good_unless(frozenset({1}), frozenset()), chance=random.Random(1))

    async def run() -> QueueResult:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run_queue(START, candidates(5), world.add, world.verify, width=4))
            await turns()
            assert sorted(world.waiting) == ["base 0", "base 0 1", "base 0 1 2", "base 0 1 2 3 4"]
            world.waiting["base 0"].set()
            world.waiting["base 0 1"].set()
            await turns()
            assert set(world.waiting) >= {"base 0 1 2 3 4"}  # what is decided waits for the first
            world.waiting["base 0 1 2 3 4"].set()
            await turns()
            assert "base 0 2 3 4" in world.waiting
            assert "base 0 1 2" not in world.waiting
            while world.waiting:
                for event in world.waiting.values():
                    event.set()
                await turns()
        return task.result()

    assert asyncio.run(run()).chain.tree == "base 0 2 3 4"


@pytest.mark.parametrize("width", [1, 3])
def test_cancelled_it_leaves_nothing_running(width: int) -> None:
    world = World(lambda these: True, chance=random.Random(1))

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run_queue(START, candidates(9), world.add, world.verify, width=width))
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
        asyncio.run(run_queue(START, candidates(3), broken.add, broken.verify))
    assert ran(unasked, 3, width=3).chain.tree == "base 0 1 2"


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)
