"""A slot that a waiting call lends to the calls below it."""

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.patterns.line import Line

if TYPE_CHECKING:
    from shoal.patterns.limiter import Limiter
    from shoal.patterns.slot import Slot


@dataclass(slots=True, eq=False)
class Waiter:
    """Who asks for a slot; *regains* when it is a lender that wants to go on."""

    granted: asyncio.Future[None]
    loan: "Loan | None"
    priority: float
    run: str
    regains: bool = False


class Loan:
    """A slot lent to the calls below it; `attached` while it is theirs, `children` are those that hold one."""

    def __init__(self, slot: "Slot") -> None:
        self.slot = slot
        self.line: Line[Waiter] = Line()
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
            self.dissolved()

    def dissolved(self) -> bool:
        """Give the slot back to its lender if it lies here, and say so."""
        lies_here = self.attached and self.children == 0
        if lies_here:
            self._detach()
        return lies_here

    async def regain(self) -> None:
        """Give the lender a slot to go on with although calls below still run."""
        if self.attached and self._users == 1 and not self.slot.ended:
            await self.slot.limiter.take(self, math.inf, "", regains=True)
        self._users -= 1

    def attach(self) -> None:
        """Take the lender's slot in: a spare one goes to whoever waits, here or anywhere."""
        if self.slot.loan is not None or self.slot.ended:
            return
        self.attached = True
        self.slot.loan = self
        if self.children:
            self.slot.limiter.free()
        else:
            self.serve()

    def granted(self, waiter: Waiter) -> None:
        """Note that *waiter* was given a slot."""
        if waiter.regains:
            self._detach()
        else:
            self.children += 1

    def serve(self) -> None:
        """Give the slot that lies here to the next call below."""
        limiter = self.slot.limiter
        if self.attached and self.children == 0 and (first := limiter.next_of(self.line)):
            limiter.grant(first, new=False)

    def returned(self) -> None:
        """Keep the slot of a call that ended if it was the last one, else let it go."""
        self.children -= 1
        if not self.attached or self.children:
            self.slot.limiter.free()
        elif self.slot.ended:  # its tasks outlived the lender
            self._detach()
            returned(self.slot.limiter, self.slot.source)
        else:
            self.serve()

    def _detach(self) -> None:
        self.attached = False
        self.slot.loan = None


def returned(limiter: "Limiter", loan: Loan | None) -> None:
    """Bring a slot back to where it was taken."""
    if loan is None:
        limiter.free()
    else:
        loan.returned()
