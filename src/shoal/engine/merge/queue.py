"""The merge queue: all that goes together lands, and what does not is found by as few verifications as it takes.

The outcome is that of the plain queue, which merges one, verifies, and keeps it or puts it aside, as long as nobody
mends what somebody before it broke. Where somebody does, both may land together; whatever lands was verified so.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.engine.merge.ahead import Ahead, Verified, Verify
from shoal.engine.merge.search import Search
from shoal.errors import first_of

C = TypeVar("C")
T = TypeVar("T")
X = TypeVar("X")


@dataclass(frozen=True, slots=True)
class Apart(Generic[X]):
    """What cannot be merged, and why."""

    conflict: X


@dataclass(frozen=True, slots=True)
class Landed(Generic[C, T]):
    """It has landed, by *tip*."""

    candidate: C
    tip: T


@dataclass(frozen=True, slots=True)
class Refused(Generic[C, T]):
    """It was put aside: *tip*, where it is merged with all that had landed before it, is not good."""

    candidate: C
    tip: T
    log: str


@dataclass(frozen=True, slots=True)
class Conflicting(Generic[C, X]):
    """It was put aside: it cannot be merged with what had landed before it."""

    candidate: C
    conflict: X


@dataclass(frozen=True, slots=True)
class Queued(Generic[C, T, X]):
    """What became of all, in their order, and where that led."""

    tip: T
    verdicts: tuple[Landed[C, T] | Refused[C, T] | Conflicting[C, X], ...]
    base_log: str | None = None
    """Why what they were to land on is not good itself, where that came to light."""


Combine = Callable[[T, C], Awaitable[T | Apart[X]]]
"""Merges a candidate into a tip: gives the new tip, and leaves the old one as it was."""
Told = Callable[[Landed[C, T] | Refused[C, T] | Conflicting[C, X]], Awaitable[None]]


async def queued(
    base: T,
    candidates: Sequence[C],
    combine: Combine[T, C, X],
    verify: Verify[T],
    *,
    key: Callable[[T], str] = str,
    width: int = 1,
    batch: int | None = None,
    told: Told[C, T, X] | None = None,
) -> Queued[C, T, X]:
    """Land *candidates* on *base* in their order.

    That is taken for good, and verified only when the very first is refused: on one that is not good all may be bad,
    and are then tried one by one, because to take them apart by halves would cost more.
    So many as *batch* (all, if nothing is said) are verified at once, and taken apart by halves if they are not good.
    Up to *width* verifications run at the same time: those beyond the first are of what may be asked next. Tips of
    the same *key*, such as the name of a tree, are verified once. Each verdict is *told* as soon as nothing can
    change it, in the order of the candidates.
    """
    try:
        async with asyncio.TaskGroup() as group:
            ahead = Ahead(group, verify, key, width)
            ahead.know(base, Verified(ok=True))
            queue = _Queue(base, combine, ahead, batch, told)
            await queue.run(candidates)
            ahead.want(())
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return Queued(queue.tip, tuple(queue.verdicts), queue.base_log)


@dataclass(frozen=True, slots=True)
class _Link(Generic[C, T, X]):
    """A candidate in a chain: merged with those before it, or apart from them."""

    candidate: C
    outcome: T | Apart[X]


class _Queue(Generic[C, T, X]):
    """The queue while it runs."""

    def __init__(
        self, base: T, combine: Combine[T, C, X], ahead: Ahead[T], batch: int | None, told: Told[C, T, X] | None
    ) -> None:
        self.tip = base
        self.verdicts: list[Landed[C, T] | Refused[C, T] | Conflicting[C, X]] = []
        self.base_log: str | None = None
        self._is_sure = False
        """Whether the tip was ever verified."""
        self._combine = combine
        self._ahead = ahead
        self._batch = batch
        self._told = told

    async def run(self, candidates: Sequence[C]) -> None:
        """Land what can be landed: each round ends at the first that is not good, or at the end."""
        while len(self.verdicts) < len(candidates):
            await self._round(await self._chain(candidates[len(self.verdicts) :]))

    async def _chain(self, rest: Sequence[C]) -> list[_Link[C, T, X]]:
        """Merge all of *rest* as if every one of them were good."""
        links: list[_Link[C, T, X]] = []
        tip = self.tip
        for candidate in rest:
            outcome = await self._combine(tip, candidate)
            links.append(_Link(candidate, outcome))
            tip = tip if isinstance(outcome, Apart) else outcome
        return links

    async def _round(self, links: list[_Link[C, T, X]]) -> None:
        """Settle *links* up to the first that is not good; what comes after it has to be merged anew."""
        merged = [at for at, link in enumerate(links) if not isinstance(link.outcome, Apart)]
        tips = [link.outcome for link in links if not isinstance(link.outcome, Apart)]
        search = Search(length=len(tips), batch=self._batch or max(len(tips), 1))
        before, log = len(self.verdicts), ""
        while (asked := search.asks) is not None:
            self._ahead.want([tips[at - 1] for at in self._wanted(search, tips)])
            verdict = await self._ahead.verdict(tips[asked - 1])
            search = search.told(ok=verdict.ok)
            if verdict.ok:
                self._is_sure = True
                await self._settled(links[len(self.verdicts) - before : merged[asked - 1] + 1])
            else:
                log = verdict.log
        if search.bad is None:
            await self._settled(links[len(self.verdicts) - before :])
            return
        culprit = merged[search.bad - 1]
        await self._settled(links[len(self.verdicts) - before : culprit])
        await self._say(Refused(links[culprit].candidate, tips[search.bad - 1], log))
        if not self._is_sure:
            await self._look_at_base()

    async def _look_at_base(self) -> None:
        """Find out whether the fault lies below all of them."""
        self._is_sure = True
        verdict = await self._ahead.looked_at(self.tip)
        if not verdict.ok:
            self.base_log, self._batch = verdict.log, 1

    def _wanted(self, search: Search, tips: Sequence[T]) -> Iterator[int]:
        def known(at: int) -> bool | None:
            return self._ahead.known(tips[at - 1])

        return itertools.islice(search.ahead(known), self._ahead.width)

    async def _settled(self, links: Sequence[_Link[C, T, X]]) -> None:
        """Say what became of links that only good ones stand before."""
        for link in links:
            if isinstance(link.outcome, Apart):
                await self._say(Conflicting(link.candidate, link.outcome.conflict))
            else:
                self.tip = link.outcome
                await self._say(Landed(link.candidate, link.outcome))

    async def _say(self, verdict: Landed[C, T] | Refused[C, T] | Conflicting[C, X]) -> None:
        self.verdicts.append(verdict)
        if self._told is not None:
            await self._told(verdict)
