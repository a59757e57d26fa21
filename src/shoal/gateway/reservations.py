"""What requests under way may cost at most: it is set aside, so that together they exceed no budget."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.gateway.budget import BudgetBook
from shoal.gateway.meters import TokenUsage
from shoal.model.budget import ScopedBudget, Spending

UNSAID_OUTPUT = 32_000
"""The tokens of an answer whose request names no maximum."""
MOST_OUTPUT = 10**7
BYTES_PER_TOKEN = 3
"""Of a request's JSON, at least, in practice: texts of any language have more."""
ASK_AGAIN = 1.0
OUTPUT_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxoutputtokens")
COUNT_KEYS = ("n", "best_of", "candidatecount")

USUAL_VALUES: Mapping[str, Sequence[object]] = {
    "service_tier": (None, "auto", "default", "standard", "standard_only", "flex"),
    "speed": (None, "standard"),
    "inference_geo": (None, "global"),
}
"""Members by which a request can be made to cost more, with the values that do not, or that cost less."""

Json = Mapping[str, Any]


@dataclass(eq=False, slots=True)
class Reservation:
    """What is set aside for one request, for as long as it is under way."""

    scopes: frozenset[str]
    most: Spending
    is_held: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Reservations:
    """Sets aside what each request may cost at most, and lets others wait until it is known what it did cost.

    A request that fits no budget beside others begins alone, so a budget is exceeded by less than one request costs.
    """

    def __init__(self, book: BudgetBook) -> None:
        self._book = book
        self._all: list[Reservation] = []
        """In the order in which they came, held or waiting."""

    async def take(
        self, scopes: Sequence[str], most: Spending, on_wait: Callable[[float], None]
    ) -> Reservation | ScopedBudget:
        """Wait until a request may begin, and return its reservation, or else the budget that is used up by then."""
        limited = frozenset(budget.scope for budget in self._book.budgets(scopes))
        mine = Reservation(limited, most)
        self._all.append(mine)
        try:
            while (reached := self._book.find_reached(scopes)) is None:
                if self._may_begin(mine):
                    mine.is_held = True
                    return mine
                on_wait(ASK_AGAIN)
                await self._wait(mine)
            return reached
        finally:
            if not mine.is_held:
                self.release(mine)

    def release(self, reservation: Reservation) -> None:
        """Give back what was set aside, after what the request did cost was counted."""
        if reservation in self._all:
            self._all.remove(reservation)
        for other in self._all:
            if other.scopes & reservation.scopes:
                other.changed.set()

    async def _wait(self, mine: Reservation) -> None:
        mine.changed.clear()
        try:
            async with asyncio.timeout(ASK_AGAIN):
                await mine.changed.wait()
        except TimeoutError:
            return

    def _may_begin(self, mine: Reservation) -> bool:
        """Return whether a request fits each of its budgets, or is alone there; none overtakes one that waits."""
        before = self._all[: self._all.index(mine)]
        if any(not other.is_held and other.scopes & mine.scopes for other in before):
            return False
        return all(self._fits(budget, mine) for budget in self._book.budgets(tuple(mine.scopes)))

    def _fits(self, budget: ScopedBudget, mine: Reservation) -> bool:
        others = [other.most for other in self._all if other.is_held and budget.scope in other.scopes]
        if not others:
            return True
        total = sum(others, budget.spent + mine.most)
        limit = budget.limit
        return (limit.usd is None or total.usd <= limit.usd) and (limit.tokens is None or total.tokens <= limit.tokens)


def estimate_most(format: str, model: str, size: int, output: int) -> TokenUsage:
    """Estimate what a request of *size* bytes may use at most; texts count as if none of them were cached."""
    read = size // BYTES_PER_TOKEN
    if format == "anthropic":  # its clients have most of their input cached, which costs more the first time
        return TokenUsage(model=model, cache_write=read, output=output, is_estimated=True)
    return TokenUsage(model=model, input=read, output=output, is_estimated=True)


def find_most_output(document: Json) -> int:
    """Return how many tokens a request allows its answers to have."""
    given = {_spell(key): value for key, value in document.items()}
    settings = given.get("generationconfig")
    if isinstance(settings, dict):
        given |= {_spell(key): value for key, value in settings.items()}
    each = [value for key in OUTPUT_KEYS if (value := _count(given.get(_spell(key)))) is not None]
    times = [value for key in COUNT_KEYS if (value := _count(given.get(_spell(key)))) is not None]
    return min(MOST_OUTPUT, max(each, default=UNSAID_OUTPUT) * max((1, *times)))


def find_surcharge(document: Json) -> str:
    """Return what makes a request cost something else than the list price, as `service_tier: priority`, or nothing."""
    given = {key.lower(): value for key, value in document.items()}
    odd = ((key, given.get(key)) for key, usual in USUAL_VALUES.items() if given.get(key) not in usual)
    return next((f"{key}: {ascii(value)[:40]}" for key, value in odd), "")


def _spell(key: str) -> str:
    return key.replace("_", "").lower()


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
