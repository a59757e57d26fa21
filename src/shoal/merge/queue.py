"""The merge queue: land every candidate that passes verification, and find those that fail with few verifications.

The outcome is the same as merging one candidate at a time and verifying after each, unless a later candidate repairs
what an earlier one broke: then both may land together. Whatever lands was verified as a whole.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from shoal.errors import first_error
from shoal.merge.candidates import Candidate
from shoal.merge.commits import Chain, CommitBuilder
from shoal.merge.tree_check import Fault, TreeCheck, Verdicts, Verified, describe_case_clash, shorten_log
from shoal.model.merge import Conflict, MergeResult, MergeStatus


async def land_candidates(
    builder: CommitBuilder, chain: Chain, candidates: Sequence[Candidate], verdicts: Verdicts, width: int = 1
) -> Chain:
    """Add to *chain* every candidate that can be added; one that cannot never stops the others.

    Up to *width* verifications run at the same time: those beyond the first are of trees that may be needed next.
    """
    check = TreeCheck(builder.bench, chain.tree, verdicts)
    faults: dict[str, Fault] = {}

    async def verify(grown: Chain) -> Verified:
        faults[grown.tree] = fault = await check.find_fault(builder.finish(grown))
        return Verified(ok=fault is None, log=fault if isinstance(fault, str) else "")

    result = await run_queue(chain, candidates, builder.add, verify, width=width)
    base_fault = None if result.base_log is None else shorten_log(result.base_log)
    end = replace(builder.finish(result.chain), base_fault=base_fault)
    for refusal in result.refusals:
        fault = faults[refusal.chain.tree] or refusal.log
        end = end.without(_refuse(refusal.candidate, fault, base_fault))
    await builder.bench.publish(end.tip, end.known)
    return end


def _refuse(candidate: Candidate, fault: Conflict | str, base_fault: str | None) -> MergeResult:
    result = MergeResult(session=candidate.session, status=MergeStatus.HELD, source=candidate.source)
    if isinstance(fault, Conflict):
        return replace(result, status=MergeStatus.CONFLICTS, message=describe_case_clash(fault), conflicts=(fault,))
    if base_fault is not None:
        reason = base_fault.partition("\n")[0]
        return replace(
            result, message=f"verification already fails on the base: {reason}; with it: {shorten_log(fault)}"
        )
    return replace(result, message=f"it fails together with the others: {shorten_log(fault)}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A candidate that was left out: *chain*, which contains it and everything that landed before it, fails."""

    candidate: Candidate
    chain: Chain
    log: str


@dataclass(frozen=True, slots=True)
class QueueResult:
    """The chain with all that landed, and what was refused in the order of the candidates."""

    chain: Chain
    refusals: tuple[Refusal, ...]
    base_log: str | None = None
    """Why the start of the chain itself fails, if that was found out."""


AddCandidate = Callable[[Chain, Candidate], Awaitable[Chain]]
"""Adds a candidate to a chain, or its conflict to the chain's refusals; the old chain stays unchanged."""
VerifyChain = Callable[[Chain], Awaitable[Verified]]


async def run_queue(
    start: Chain, candidates: Sequence[Candidate], add: AddCandidate, verify: VerifyChain, *, width: int = 1
) -> QueueResult:
    """Land *candidates* on *start* in order.

    All of them are verified at once, and bisected if they fail. *start* is assumed to be good, and verified only if the
    very first candidate is refused: on a bad start all may fail, so they are then tried one by one, which is cheaper
    than bisecting. Chains with the same tree are verified once.
    """
    try:
        async with asyncio.TaskGroup() as group:
            verifier = SpeculativeVerifier(group, verify, width)
            verifier.assume_good(start)
            queue = _Queue(start, add, verifier)
            await queue.run(candidates)
            verifier.want(())
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return QueueResult(queue.chain, tuple(queue.refusals), queue.base_log)


class _Queue:
    """The queue while it runs."""

    def __init__(self, start: Chain, add: AddCandidate, verifier: "SpeculativeVerifier") -> None:
        self.chain = start
        self.refusals: list[Refusal] = []
        self.base_log: str | None = None
        self._start_tree = start.tree
        self._add = add
        self._verifier = verifier
        self._is_verified = False
        """Whether any tree besides the assumed start was found good, or the start itself was verified."""
        self._batch: int | None = None

    async def run(self, candidates: Sequence[Candidate]) -> None:
        """Land what can be landed: each round ends at the first candidate that fails, or at the end."""
        settled = 0
        while settled < len(candidates):
            settled += await self._run_round(candidates[settled:])

    async def _run_round(self, candidates: Sequence[Candidate]) -> int:
        """Land *candidates* up to the first failure, and return how many are settled; the rest is merged anew."""
        chains = await self._add_all(candidates)
        bisection = Bisection(length=len(chains), batch=self._batch or len(chains))
        log = ""
        while (count := bisection.next_count) is not None:
            self._verifier.want([chains[number - 1] for number in self._likely_counts(bisection, chains)])
            verdict = await self._verifier.verdict(chains[count - 1])
            bisection = bisection.answer(ok=verdict.ok)
            if verdict.ok:
                self.chain = chains[count - 1]
                self._is_verified = self._is_verified or self.chain.tree != self._start_tree
            else:
                log = verdict.log
        if bisection.bad is None:
            return len(candidates)
        self.refusals.append(Refusal(candidates[bisection.good], chains[bisection.good], log))
        if not self._is_verified:
            await self._verify_start()
        return bisection.bad

    async def _add_all(self, candidates: Sequence[Candidate]) -> list[Chain]:
        """Merge all *candidates* as if each of them were good."""
        chains: list[Chain] = []
        for candidate in candidates:
            chains.append(await self._add(chains[-1] if chains else self.chain, candidate))
        return chains

    async def _verify_start(self) -> None:
        """Find out whether the start itself fails verification."""
        self._is_verified = True
        verdict = await self._verifier.verify_now(self.chain)
        if not verdict.ok:
            self.base_log, self._batch = verdict.log, 1

    def _likely_counts(self, bisection: "Bisection", chains: Sequence[Chain]) -> Iterator[int]:
        def is_good(count: int) -> bool | None:
            return self._verifier.is_good(chains[count - 1])

        return itertools.islice(bisection.likely_counts(is_good), self._verifier.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """The search for the first bad candidate: the first *good* are good together, the first *bad* are not."""

    length: int
    batch: int
    good: int = 0
    bad: int | None = None

    @property
    def next_count(self) -> int | None:
        """How many candidates from the start to verify next; `None` when the search is over."""
        if self.bad is None:
            return None if self.good == self.length else min(self.good + self.batch, self.length)
        return None if self.bad - self.good == 1 else (self.good + self.bad) // 2

    def answer(self, *, ok: bool) -> "Bisection":
        """Continue with the verdict on `next_count`."""
        count = self.good if self.next_count is None else self.next_count
        return replace(self, good=count) if ok else replace(self, bad=count)

    def likely_counts(self, is_good: Callable[[int], bool | None]) -> Iterator[int]:
        """Yield the next count and those that may follow it, whatever the verdicts, the soonest first."""
        searches = deque([self])
        while searches:
            search = searches.popleft()
            if (count := search.next_count) is None:
                continue
            if (verdict := is_good(count)) is not None:
                searches.append(search.answer(ok=verdict))
                continue
            yield count
            searches += (search.answer(ok=False), search.answer(ok=True))


class SpeculativeVerifier:
    """Verify chains in parallel, each tree once, and cancel verifications that are no longer needed."""

    def __init__(self, group: asyncio.TaskGroup, verify: VerifyChain, width: int) -> None:
        self.width = width
        self._group = group
        self._verify = verify
        # A cancelled verification takes time to end; only then is there room for another.
        self._room = asyncio.Semaphore(width)
        self._verdicts: dict[str, Verified | Exception] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def assume_good(self, chain: Chain) -> None:
        """Treat *chain* as good without verifying it."""
        self._verdicts[chain.tree] = Verified(ok=True)

    def is_good(self, chain: Chain) -> bool | None:
        """Return whether *chain* is good, if that is known."""
        verdict = self._verdicts.get(chain.tree)
        return verdict.ok if isinstance(verdict, Verified) else None

    def want(self, chains: Sequence[Chain]) -> None:
        """Verify *chains*, and cancel whatever else is running."""
        wanted = {chain.tree: chain for chain in chains}
        for tree in self._running.keys() - wanted.keys():
            self._running.pop(tree).cancel()
        for tree, chain in wanted.items():
            if tree not in self._verdicts and tree not in self._running:
                self._running[tree] = self._group.create_task(self._run(chain))

    async def verify_now(self, chain: Chain) -> Verified:
        """Verify *chain* although it was assumed to be good, and nothing else meanwhile."""
        self.want(())
        async with self._room:
            return await self._verify(chain)

    async def verdict(self, chain: Chain) -> Verified:
        """Wait for the verdict on *chain*, which must be wanted; raise the error of its verification."""
        if chain.tree not in self._verdicts:
            task = self._running[chain.tree]
            await asyncio.wait((task,))
            if task.cancelled():  # not by us
                raise asyncio.CancelledError
        verdict = self._verdicts[chain.tree]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def _run(self, chain: Chain) -> None:
        async with self._room:
            try:
                verdict: Verified | Exception = await self._verify(chain)
            except Exception as error:  # the error of a chain whose verdict may never be needed
                verdict = error
        # A verification that ends while it is being cancelled may be wanted again already.
        if self._running.get(chain.tree) is asyncio.current_task():
            del self._running[chain.tree]
            self._verdicts[chain.tree] = verdict
