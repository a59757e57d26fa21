"""What is set aside for requests under way: together they exceed a budget by less than one of them costs."""

import asyncio
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.gateway.budget import BudgetBook
from shoal.gateway.reservations import UNSAID_OUTPUT, Reservation, Reservations, find_most_output
from shoal.model.budget import ScopedBudget, Spending, SpendingLimit
from shoal.testing.model import Say, Usage
from tests.gateway.test_model_calls import BODY, serving

RUN = ("run", "step:a", "session:1")


def tokens(count: int) -> Spending:
    return Spending(tokens=count)


def book_of(**limits: int) -> BudgetBook:
    book = BudgetBook()
    for scope, count in limits.items():
        book.add(ScopedBudget(scope=scope, limit=SpendingLimit(tokens=count)))
    return book


async def take(room: Reservations, count: int, scopes: tuple[str, ...] = RUN) -> Reservation:
    found = await room.take(scopes, tokens(count), lambda _: None)
    assert isinstance(found, Reservation)
    return found


async def test_what_does_not_fit_beside_others_waits_until_their_cost_is_known() -> None:
    book = book_of(run=1000)
    room, waits = Reservations(book), list[float]()
    first = await take(room, 600)

    async with asyncio.TaskGroup() as group:
        second = group.create_task(room.take(RUN, tokens(600), waits.append))
        while not waits:
            await asyncio.sleep(0)
        third = group.create_task(room.take(RUN, tokens(1), lambda _: None))
        await asyncio.sleep(0)
        assert not third.done(), "nobody overtakes who waits"
        book.add_spent(RUN, tokens(300))
        room.release(first)
        assert isinstance(await second, Reservation)
        assert isinstance(await third, Reservation)


async def test_a_request_that_fits_no_budget_begins_alone() -> None:
    room = Reservations(book_of(run=10))

    await take(room, 10**6)


async def test_who_waits_for_a_budget_that_is_used_up_is_told_so() -> None:
    book = book_of(run=1000)
    room = Reservations(book)
    first = await take(room, 1000)

    async with asyncio.TaskGroup() as group:
        second = group.create_task(room.take(RUN, tokens(1), lambda _: None))
        await asyncio.sleep(0)
        book.add_spent(RUN, tokens(1000))
        room.release(first)

    assert isinstance(found := second.result(), ScopedBudget)
    assert found.scope == "run"


async def test_budgets_without_anything_in_common_do_not_wait_for_each_other() -> None:
    room = Reservations(book_of(**{"step:a": 10, "step:b": 10}))

    await take(room, 10, ("run", "step:a"))
    await take(room, 10, ("run", "step:b"))


async def test_who_stops_waiting_is_forgotten() -> None:
    room = Reservations(book_of(run=10))
    first = await take(room, 10)

    async with asyncio.TaskGroup() as group:
        second = group.create_task(room.take(RUN, tokens(10), lambda _: None))
        await asyncio.sleep(0)
        second.cancel()
    room.release(first)

    await take(room, 10)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2000), st.lists(st.integers(1, 400), min_size=1, max_size=30), st.integers(0, 2**32))
def test_no_order_of_requests_exceeds_a_budget_by_more_than_one_of_them(most: int, sizes: list[int], seed: int) -> None:
    chance, book = random.Random(seed), book_of(run=most)
    room = Reservations(book)

    async def ask(size: int) -> None:
        found = await room.take(RUN, tokens(size), lambda _: None)
        if isinstance(found, Reservation):
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            book.add_spent(RUN, tokens(chance.randint(0, size)))
            room.release(found)

    async def ask_all() -> None:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for size in sizes:
                group.create_task(ask(size))

    asyncio.run(ask_all())

    (budget,) = book.budgets(RUN)
    assert budget.spent.tokens < most + max(sizes)


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({"max_tokens": 9}, 9),
        ({"max_completion_tokens": 9, "max_tokens": 11, "n": 3}, 33),
        ({"max_output_tokens": 7}, 7),
        ({"generationConfig": {"maxOutputTokens": 5, "candidateCount": 2}}, 10),
        ({"generation_config": {"max_output_tokens": 5}}, 5),
        ({}, UNSAID_OUTPUT),
        ({"max_tokens": "9", "n": -1}, UNSAID_OUTPUT),
        ({"max_tokens": True}, UNSAID_OUTPUT),
        ({"max_tokens": 10**30, "n": 10**30}, 10**7),
    ],
)
def test_what_an_answer_may_have_is_read_in_every_wire_format(body: dict[str, Any], most: int) -> None:
    assert find_most_output(body) == most


async def test_forty_requests_at_once_exceed_a_budget_by_less_than_one_and_are_counted_exactly(tmp_path: Path) -> None:
    each = (Decimal(1000) * 3 + Decimal(900) * 15) / 10**6
    budget = ScopedBudget(scope="run", limit=SpendingLimit(usd=each * 5))
    body = {**BODY, "max_tokens": 900, "messages": [{"role": "user", "content": "word " * 700}]}
    async with serving([Say("ok", usage=Usage(1000, 900))] * 40, tmp_path) as gateway:
        gateway.calls.book.add(budget)
        statuses: list[int] = []

        async def ask(name: str) -> None:
            async with gateway.client(name, scopes=("run",)) as http:
                for _ in range(4):
                    statuses.append((await http.post("/v1/messages", json=body)).status_code)

        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(ask(str(number)))
        (spent,) = gateway.calls.book.budgets(["run"])
        log = gateway.model.usage

    assert statuses.count(200) == len(gateway.model.answers)
    assert set(statuses) == {200, 403}
    assert spent.spent.usd == (Decimal(log.input) * 3 + Decimal(log.output) * 15) / 10**6
    assert each * 5 <= spent.spent.usd < each * 6
