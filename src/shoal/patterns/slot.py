"""The right of a call to run, and how it is lent while the call waits for others."""

import asyncio
import math
from collections import OrderedDict
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from shoal.patterns.limiter import Limiter


class QueueEntry(Protocol):
    """A member of a queue: the higher priority comes first, and runs take turns within a priority."""

    priority: float
    run: str


W = TypeVar("W", bound=QueueEntry)


class WaitQueue(Generic[W]):
    """A queue that can be left from any position in constant time."""

    def __init__(self) -> None:
        self._runs: dict[float, OrderedDict[str, OrderedDict[W, None]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def first(self) -> W:
        """Return the next waiter, without removing it."""
        runs = self._runs[max(self._runs)]
        return next(iter(next(iter(runs.values()))))

    def add(self, waiter: W) -> None:
        """Put *waiter* behind those of its own run."""
        self._runs.setdefault(waiter.priority, OrderedDict()).setdefault(waiter.run, OrderedDict())[waiter] = None
        self._length += 1

    def remove(self, waiter: W, *, served: bool) -> None:
        """Remove *waiter* if it is here; if it was *served*, the next run has its turn."""
        runs = self._runs.get(waiter.priority, OrderedDict())
        if waiter not in runs.get(waiter.run, ()):
            return
        del runs[waiter.run][waiter]
        self._length -= 1
        if not runs[waiter.run]:
            del runs[waiter.run]
        elif served:
            runs.move_to_end(waiter.run)
        if not runs:
            del self._runs[waiter.priority]


@dataclass(slots=True, eq=False)
class Waiter:
    """A call that waits for a slot; *regains* if it is a lender that wants to continue."""

    granted: asyncio.Future[None]
    loan: "Loan | None"
    priority: float
    run: str
    regains: bool = False


class Loan:
    """A slot lent to the calls below it; `attached` while it is theirs; `children` counts those that hold one."""

    def __init__(self, slot: "Slot") -> None:
        self.slot = slot
        self.line: WaitQueue[Waiter] = WaitQueue()
        self.attached = False
        self.children = 0
        self._users = 0

    def begin(self) -> None:
        """Lend the slot, now or together with another pattern that the same call waits for."""
        self._users += 1
        self.attach()

    def end(self) -> None:
        """Give the slot back to its lender: the calls below have ended, so it is here."""
        self._users -= 1
        if self._users == 0:
            self.dissolve()

    def dissolve(self) -> bool:
        """Return the slot to its lender if it is here, and whether it was."""
        lies_here = self.attached and self.children == 0
        if lies_here:
            self._detach()
        return lies_here

    async def regain(self) -> None:
        """Give the lender a slot to continue although calls below still run."""
        if self.attached and self._users == 1 and not self.slot.ended:
            await self.slot.limiter.take(self, math.inf, "", regains=True)
        self._users -= 1

    def attach(self) -> None:
        """Add the lender's slot; a spare one goes to the next waiter, here or anywhere."""
        if self.slot.loan is not None or self.slot.ended:
            return
        self.attached = True
        self.slot.loan = self
        if self.children:
            self.slot.limiter.free()
        else:
            self.serve()

    def note_grant(self, waiter: Waiter) -> None:
        """Note that *waiter* was given a slot."""
        if waiter.regains:
            self._detach()
        else:
            self.children += 1

    def serve(self) -> None:
        """Give the loan's slot to the next call below."""
        limiter = self.slot.limiter
        if self.attached and self.children == 0 and (first := limiter.next_of(self.line)):
            limiter.grant(first, new=False)

    def keep_or_release(self) -> None:
        """Keep the slot of a call that ended if it was the last one; otherwise release it."""
        self.children -= 1
        if not self.attached or self.children:
            self.slot.limiter.free()
        elif self.slot.ended:  # its tasks outlived the lender
            self._detach()
            return_slot(self.slot.limiter, self.slot.source)
        else:
            self.serve()

    def _detach(self) -> None:
        self.attached = False
        self.slot.loan = None


def return_slot(limiter: "Limiter", loan: Loan | None) -> None:
    """Return a slot to where it was taken."""
    if loan is None:
        limiter.free()
    else:
        loan.keep_or_release()


_slot: ContextVar["Slot | None"] = ContextVar("slot", default=None)  # what the running call holds
_loan: ContextVar[Loan | None] = ContextVar("loan", default=None)  # where the calls of the running task get their slots


class Slot:
    """The right of a call to run, held inside its `async with`."""

    above: Loan | None  # the loan of the call that asked for it
    source: Loan | None  # the nearest loan of its own limiter, from which it is taken and to which it returns
    priority: int
    run: str

    def __init__(self, limiter: "Limiter", priority: int | None, run: str | None) -> None:
        self.limiter = limiter
        self.loan: Loan | None = None  # to whom it is lent
        self.ended = False
        self._priority = priority
        self._run = run

    async def __aenter__(self) -> None:
        self._lender = _slot.get()
        self._borrowed = self._lender.lend() if self._lender else None
        self.above = self._borrowed or _loan.get()
        self.source = _nearest(self.above, self.limiter)
        lender = self.above.slot if self.above else None
        self.priority = (lender.priority if lender else 0) if self._priority is None else self._priority
        self.run = (lender.run if lender else "") if self._run is None else self._run
        try:
            await self.limiter.take(self.source, self.priority, self.run)
        except BaseException:
            self._end_loan()
            raise
        _slot.set(self)

    async def __aexit__(self, *_: object) -> None:
        self.ended = True
        _slot.set(self._lender)
        if self.loan is None or self.loan.dissolve():
            return_slot(self.limiter, self.source)
        self._end_loan()

    def lend(self) -> Loan:
        """Lend it; waiters below already share the loan."""
        loan = self.loan or Loan(self)
        loan.begin()
        return loan

    def _end_loan(self) -> None:
        if self._borrowed is not None:
            self._borrowed.end()


def _nearest(loan: Loan | None, limiter: "Limiter") -> Loan | None:
    """Find the innermost loan of *limiter* whose lender has not ended."""
    while loan is not None and (loan.slot.limiter is not limiter or loan.slot.ended):
        loan = loan.slot.above
    return loan


class LentSlot:
    """The running call's slot, if it holds one, lent inside the `with` to the calls that it waits for."""

    def __enter__(self) -> Self:
        slot = _slot.get()
        self._loan = slot.lend() if slot else None
        self._is_out = True
        self.below = self._loan or _loan.get()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loan is not None and self._is_out:
            self._loan.end()

    def pause(self) -> "Pause":
        """Give the call a slot to continue for a while; after an error, it keeps it."""
        return Pause(self)

    async def take_back(self) -> None:
        """Wait for a slot for the lender, if there is one."""
        if self._loan is not None:
            await self._loan.regain()
            self._is_out = False

    def lend_again(self) -> None:
        """Lend the slot as before."""
        if self._loan is not None:
            self._is_out = True
            self._loan.begin()


class Pause:
    """A period in which the lender continues; a class, as a generator would close twice with an abandoned stream."""

    def __init__(self, lending: LentSlot) -> None:
        self._lending = lending

    async def __aenter__(self) -> None:
        await self._lending.take_back()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._lending.lend_again()


def run_below(loan: Loan | None) -> None:
    """Let the running task, which a pattern started, hold no slot; its calls take theirs below *loan*."""
    _slot.set(None)
    _loan.set(loan)


def holds_slot() -> bool:
    """Return whether the running call holds a slot."""
    return _slot.get() is not None
