"""The merge queue: all that goes together lands, and what does not is found by as few verifications as it takes.

The outcome is that of the plain queue, which merges one, verifies, and keeps it or puts it aside, as long as nobody
mends what somebody before it broke. Where somebody does, both may land together; whatever lands was verified so.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from shoal.errors import first_of
from shoal.merge.candidates import Candidate
from shoal.merge.commits import Chain, CommitBuilder
from shoal.merge.tree_check import Fault, TreeCheck, Verdicts, by_case, shorten_log
from shoal.model.merge import Conflict, MergeResult, MergeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is known of a chain: so many links as *good* from its start are good, and so many as *bad* are not."""

    length: int
    batch: int
    good: int = 0
    bad: int | None = None

    @property
    def asks(self) -> int | None:
        """Say of how many links from the start the verdict is needed next; `None` when the search is over."""
        if self.bad is None:
            return None if self.good == self.length else min(self.good + self.batch, self.length)
        return None if self.bad - self.good == 1 else (self.good + self.bad) // 2

    def answer(self, *, ok: bool) -> "Search":
        """Go on with the answer to what was asked."""
        asked = self.good if self.asks is None else self.asks
        return replace(self, good=asked) if ok else replace(self, bad=asked)

    def ahead(self, known: Callable[[int], bool | None]) -> Iterator[int]:
        """Go through what is asked next, and after that whatever the answer, the soonest first."""
        line = deque([self])
        while line:
            one = line.popleft()
            if (asked := one.asks) is None:
                continue
            if (answer := known(asked)) is not None:
                line.append(one.answer(ok=answer))
                continue
            yield asked
            line += (one.answer(ok=False), one.answer(ok=True))


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verified:
    """Whether a tip is good, and what was said about it."""

    ok: bool
    log: str = ""


Verify = Callable[[T], Awaitable[Verified]]


class SpeculativeVerifier(Generic[T]):
    """Verifications that run or are done: each tip is verified once, and what nobody wants any more is ended."""

    def __init__(self, group: asyncio.TaskGroup, verify: Verify[T], key: Callable[[T], str], width: int) -> None:
        self.width = width
        self._group = group
        self._verify = verify
        self._key = key
        # Who is cancelled takes its time: only when it is gone is there room for another.
        self._room = asyncio.Semaphore(width)
        self._done: dict[str, Verified | Exception] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def know(self, tip: T, verdict: Verified) -> None:
        """Take *verdict* for given."""
        self._done[self._key(tip)] = verdict

    def verdict_on(self, tip: T) -> bool | None:
        """Say whether *tip* is good, if that is known."""
        verdict = self._done.get(self._key(tip))
        return verdict.ok if isinstance(verdict, Verified) else None

    def want(self, tips: Sequence[T]) -> None:
        """Have these verified, and end what runs besides."""
        wanted = {self._key(tip): tip for tip in tips}
        for key in self._running.keys() - wanted.keys():
            self._running.pop(key).cancel()
        for key, tip in wanted.items():
            if key not in self._done and key not in self._running:
                self._running[key] = self._group.create_task(self._run(key, tip))

    async def verify(self, tip: T) -> Verified:
        """Verify what was taken for given."""
        self.want(())
        async with self._room:
            return await self._verify(tip)

    async def verdict(self, tip: T) -> Verified:
        """Wait for what is said of *tip*, which is wanted; a fault of the verification is raised."""
        key = self._key(tip)
        if key not in self._done:
            task = self._running[key]
            await asyncio.wait((task,))
            if task.cancelled():  # by nobody here
                raise asyncio.CancelledError
        verdict = self._done[key]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def _run(self, key: str, tip: T) -> None:
        async with self._room:
            try:
                verdict: Verified | Exception = await self._verify(tip)
            except Exception as error:  # of something that nobody may ever ask for
                verdict = error
        # Ended in the moment of its cancelling, it may be wanted anew already.
        if self._running.get(key) is asyncio.current_task():
            del self._running[key]
            self._done[key] = verdict


C = TypeVar("C")
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
class RefusedLink(Generic[C, T]):
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
    verdicts: tuple[Landed[C, T] | RefusedLink[C, T] | Conflicting[C, X], ...]
    base_log: str | None = None
    """Why what they were to land on is not good itself, where that came to light."""


Combine = Callable[[T, C], Awaitable[T | Apart[X]]]
"""Merges a candidate into a tip: gives the new tip, and leaves the old one as it was."""
Told = Callable[[Landed[C, T] | RefusedLink[C, T] | Conflicting[C, X]], Awaitable[None]]


async def run_queue(
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
            ahead = SpeculativeVerifier(group, verify, key, width)
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
        self,
        base: T,
        combine: Combine[T, C, X],
        ahead: SpeculativeVerifier[T],
        batch: int | None,
        told: Told[C, T, X] | None,
    ) -> None:
        self.tip = base
        self.verdicts: list[Landed[C, T] | RefusedLink[C, T] | Conflicting[C, X]] = []
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
            self._ahead.want([tips[at - 1] for at in self._wanted_tips(search, tips)])
            verdict = await self._ahead.verdict(tips[asked - 1])
            search = search.answer(ok=verdict.ok)
            if verdict.ok:
                self._is_sure = True
                await self._settle(links[len(self.verdicts) - before : merged[asked - 1] + 1])
            else:
                log = verdict.log
        if search.bad is None:
            await self._settle(links[len(self.verdicts) - before :])
            return
        culprit = merged[search.bad - 1]
        await self._settle(links[len(self.verdicts) - before : culprit])
        await self._say(RefusedLink(links[culprit].candidate, tips[search.bad - 1], log))
        if not self._is_sure:
            await self._look_at_base()

    async def _look_at_base(self) -> None:
        """Find out whether the fault lies below all of them."""
        self._is_sure = True
        verdict = await self._ahead.verify(self.tip)
        if not verdict.ok:
            self.base_log, self._batch = verdict.log, 1

    def _wanted_tips(self, search: Search, tips: Sequence[T]) -> Iterator[int]:
        def known(at: int) -> bool | None:
            return self._ahead.verdict_on(tips[at - 1])

        return itertools.islice(search.ahead(known), self._ahead.width)

    async def _settle(self, links: Sequence[_Link[C, T, X]]) -> None:
        """Say what became of links that only good ones stand before."""
        for link in links:
            if isinstance(link.outcome, Apart):
                await self._say(Conflicting(link.candidate, link.outcome.conflict))
            else:
                self.tip = link.outcome
                await self._say(Landed(link.candidate, link.outcome))

    async def _say(self, verdict: Landed[C, T] | RefusedLink[C, T] | Conflicting[C, X]) -> None:
        self.verdicts.append(verdict)
        if self._told is not None:
            await self._told(verdict)


async def build(
    smith: CommitBuilder, chain: Chain, candidates: Sequence[Candidate], verdicts: Verdicts, width: int = 1
) -> Chain:
    """Add all *candidates* that can be added; one that cannot never stops the others.

    Up to *width* verifications run at the same time, those beyond the first of what may be asked next.
    """
    look = TreeCheck(smith.bench, chain.tree, verdicts)
    faults: dict[str, Fault] = {}

    async def combine(tip: Chain, one: Candidate) -> Chain | Apart[None]:
        return await smith.grown(tip, one)  # its conflicts are among what the chain has refused

    async def looked_at(tip: Chain) -> Verified:
        faults[tip.tree] = fault = await look.fault(smith.finish(tip))
        return Verified(ok=fault is None, log=fault if isinstance(fault, str) else "")

    done = await run_queue(chain, candidates, combine, looked_at, key=lambda tip: tip.tree, width=width)
    end = replace(smith.finish(done.tip), base_fault=None if done.base_log is None else shorten_log(done.base_log))
    for one in done.verdicts:
        if isinstance(one, RefusedLink):
            end = end.without(_aside(one.candidate, faults[one.tip.tree] or one.log, end.base_fault))
    await smith.bench.publish(end.tip, end.known)
    return end


def _aside(one: Candidate, fault: Conflict | str, base_fault: str | None) -> MergeResult:
    result = MergeResult(session=one.session, status=MergeStatus.HELD, source=one.source)
    if isinstance(fault, Conflict):
        return replace(result, status=MergeStatus.CONFLICTS, message=by_case(fault), conflicts=(fault,))
    if base_fault is not None:
        reason = base_fault.partition("\n")[0]
        return replace(
            result, message=f"verification fails on the base already: {reason}; with it: {shorten_log(fault)}"
        )
    return replace(result, message=f"together with the others it fails: {shorten_log(fault)}")
