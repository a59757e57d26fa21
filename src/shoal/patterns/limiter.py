"""One limit for all calls of a process, however the patterns that make them nest.

A call runs while it holds a slot. A call that enters a pattern waits for calls below it, so it lends them its slot:
the first of them goes on with it, more of them take free slots, and the last one that ends leaves it to the lender.

- Never more than `max_concurrent`: `active` counts the slots that are out. It grows only in `_serve`, which looks at
  the limit first. A lent slot is always in one place: idle in its loan while no call runs below (`children == 0`),
  else with one of those calls; so calls that run are never more than slots that are out.
- Never a deadlock: a call that holds a slot runs, or lends it. A loan's calls always have at least one slot among them,
  because the last one leaves its slot in the loan, where the next of them takes it whatever others do. By induction
  from the innermost pattern, every call ends. When a pattern ends, its calls have ended, so the slot is in the loan and
  the lender continues without waiting, even if it was cancelled or all other slots are taken for an hour.
- A consumer of `stream` gets its slot back between two results while calls below still run: it waits for a free slot or
  for the last of them, whichever comes first, and those need nothing from it in order to end.
- A cancelled waiter leaves the queue; if it was granted a slot in the same tick, it gives the slot back.

This holds for one limiter. Of two limiters that nest in both orders, each can wait for the other, as two locks can.
A call that makes tasks of its own shares its one slot with them. A limiter serves one event loop at a time.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shoal.errors import BadInput
from shoal.patterns.slot import Loan, Slot, Waiter, WaitQueue, return_slot

DEFAULT_MAX_CONCURRENT = 10

_limiter: ContextVar["Limiter | None"] = ContextVar("limiter", default=None)


class Limiter:
    """Let at most *max_concurrent* calls run at once.

    *admit* is asked before each new slot and returns `None` or the reason to wait; it is asked again when a slot comes
    free and every *retry_seconds*. *told* is called with each reason once, and with `None` when it is over. An error of
    *admit* is raised to the call that was next.
    """

    def __init__(
        self,
        max_concurrent: int,
        *,
        admit: Callable[[], str | None] | None = None,
        told: Callable[[str | None], None] | None = None,
        retry_seconds: float = 0.5,
    ) -> None:
        self._admit = admit
        self._told = told
        self._retry_seconds = retry_seconds
        self._reason: str | None = None
        self._again: asyncio.TimerHandle | None = None
        self._line: WaitQueue[Waiter] = WaitQueue()
        self._active = 0
        self.resize(max_concurrent)

    @property
    def max_concurrent(self) -> int:
        """How many may run at once."""
        return self._max

    @property
    def active(self) -> int:
        """How many slots are in use."""
        return self._active

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._line)

    def resize(self, max_concurrent: int) -> None:
        """Change the limit; calls above a smaller limit continue until they end."""
        if max_concurrent < 1:
            raise BadInput(f"max_concurrent must be at least 1, not {max_concurrent}")
        self._max = max_concurrent
        self._serve()

    def slot(self, *, priority: int | None = None, run: str | None = None) -> Slot:
        """Wait for a slot with `async with`; *priority* and *run* default to the lender's (0 and "")."""
        return Slot(self, priority, run)

    async def take(self, loan: Loan | None, priority: float, run: str, *, regains: bool = False) -> None:
        """Wait for a slot below *loan*; used by slots and loans only."""
        waiter = Waiter(asyncio.get_running_loop().create_future(), loan, priority, run, regains)
        self._line.add(waiter)
        if loan is not None:
            loan.line.add(waiter)
            loan.serve()
        self._serve()
        if waiter.granted.done():
            return waiter.granted.result()
        try:
            await waiter.granted
        except BaseException:
            if not waiter.granted.done() or waiter.granted.cancelled():
                self._leave(waiter, served=False)
            elif waiter.granted.exception() is None:
                self._undo(waiter)
            raise

    def grant(self, waiter: Waiter, *, new: bool) -> None:
        """Give *waiter* a *new* slot, or the one in its loan."""
        self._leave(waiter, served=True)
        self._active += new
        if waiter.loan is not None:
            waiter.loan.note_grant(waiter)
        waiter.granted.set_result(None)

    def free(self) -> None:
        """Take a slot back and serve the next in line."""
        self._active -= 1
        self._serve()

    def _serve(self) -> None:
        while self._active < self._max and (first := self.next_of(self._line)):
            try:
                reason = self._describe_waiting()
            except Exception as error:
                self._leave(first, served=True)
                first.granted.set_exception(error)
                continue
            if reason is not None:
                self._ask_again()
                return
            self.grant(first, new=True)

    def next_of(self, line: WaitQueue[Waiter]) -> Waiter | None:
        """Return the next waiter in *line* that was not cancelled."""
        while line:
            first = line.first()
            if not first.granted.cancelled():
                return first
            self._leave(first, served=False)
        return None

    def _describe_waiting(self) -> str | None:
        reason = None if self._admit is None else self._admit()
        if reason != self._reason:
            self._reason = reason
            if self._told is not None:
                self._told(reason)
        return reason

    def _ask_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(self._retry_seconds, self._serve)

    def _leave(self, waiter: Waiter, *, served: bool) -> None:
        self._line.remove(waiter, served=served)
        if waiter.loan is not None:
            waiter.loan.line.remove(waiter, served=served)
        if self._again is not None and not self._line:
            self._again.cancel()
            self._again = None

    def _undo(self, waiter: Waiter) -> None:
        """Give back what *waiter* was granted in the tick in which it was cancelled."""
        if waiter.regains and waiter.loan is not None:
            waiter.loan.attach()
        else:
            return_slot(self, waiter.loan)


_of_the_process = Limiter(DEFAULT_MAX_CONCURRENT)


def default_limiter() -> Limiter:
    """Return the limiter of the nearest `use_limiter`, or the process's own."""
    return _limiter.get() or _of_the_process


@contextmanager
def use_limiter(limiter: Limiter) -> Iterator[Limiter]:
    """Make *limiter* the one of every pattern in the `with` that is not given another."""
    before = _limiter.get()
    _limiter.set(limiter)
    try:
        yield limiter
    finally:
        _limiter.set(before)
