"""The right of one call to run, and how it is lent while the call waits for others."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Self

from shoal.patterns.loan import Loan, returned

if TYPE_CHECKING:
    from shoal.patterns.limiter import Limiter

_slot: ContextVar["Slot | None"] = ContextVar("slot", default=None)  # what the running call holds
_loan: ContextVar[Loan | None] = ContextVar("loan", default=None)  # where the running task's calls get their slots


class Slot:
    """The right of one call to run, held inside its `async with`."""

    above: Loan | None  # the loan of the call that it was asked for in
    source: Loan | None  # the nearest loan of its own limiter: there it is taken and brought back
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
        if self.loan is None or self.loan.dissolved():
            returned(self.limiter, self.source)
        self._end_loan()

    def lend(self) -> Loan:
        """Lend it; whoever waits below already shares the loan."""
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


class Lending:
    """The running call's slot, if it holds one, lent to the calls that it waits for inside the `with`."""

    def __enter__(self) -> Self:
        slot = _slot.get()
        self._loan = slot.lend() if slot else None
        self._is_out = True
        self.below = self._loan or _loan.get()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loan is not None and self._is_out:
            self._loan.end()

    def paused(self) -> "Pause":
        """Give the call a slot to go on with for a while; left by an error, it keeps it."""
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
    """A time in which the lender goes on; a class, as a generator would be closed twice with an abandoned stream."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending

    async def __aenter__(self) -> None:
        await self._lending.take_back()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._lending.lend_again()


def live_below(loan: Loan | None) -> None:
    """Make the running task, which a pattern started, hold no slot, and its calls take theirs below *loan*."""
    _slot.set(None)
    _loan.set(loan)


def holds_slot() -> bool:
    """Say whether the running call holds a slot."""
    return _slot.get() is not None
