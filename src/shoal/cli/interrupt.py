"""Ctrl-C and its kin: once asks the agents to stop, twice ends everything at once."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator

from shoal.cli import output
from shoal.cli.render import trouble

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """What signals have asked for so far; *stop* is set by the first."""

    def __init__(self, task: asyncio.Task[object] | None) -> None:
        self.stop = asyncio.Event()
        self.is_late = False
        self._task = task

    def ask(self) -> None:
        """Take one signal."""
        if self.stop.is_set() and self._task is not None:
            self._task.cancel()
        elif not self.stop.is_set():
            self.stop.set()
            output.tell(trouble.stopping())

    def be_late(self) -> None:
        """Stop because the time of the whole is over."""
        if not self.stop.is_set():
            self.is_late = True
            self.stop.set()
            output.tell(trouble.late())


@contextlib.contextmanager
def interruptible(deadline: float | None = None) -> Iterator[Interrupt]:
    """Take the signals for as long as the current task is in here; after *deadline* seconds act as if one came."""
    interrupt = Interrupt(asyncio.current_task())
    loop = asyncio.get_running_loop()
    clock = None if deadline is None else loop.call_later(deadline, interrupt.be_late)
    # What was ignored from the start (`nohup`) stays ignored: that was asked for.
    taken = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    for one in taken:
        loop.add_signal_handler(one, interrupt.ask)
    try:
        yield interrupt
    finally:
        if clock is not None:
            clock.cancel()
        for one in taken:
            loop.remove_signal_handler(one)
