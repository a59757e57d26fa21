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
        self._task = task

    def ask(self) -> None:
        """Take one signal."""
        if self.stop.is_set() and self._task is not None:
            self._task.cancel()
        elif not self.stop.is_set():
            self.stop.set()
            output.tell(trouble.stopping())


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Take the signals for as long as the current task is in here."""
    interrupt = Interrupt(asyncio.current_task())
    loop = asyncio.get_running_loop()
    # What was ignored from the start (`nohup`) stays ignored: that was asked for.
    taken = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    for one in taken:
        loop.add_signal_handler(one, interrupt.ask)
    try:
        yield interrupt
    finally:
        for one in taken:
            loop.remove_signal_handler(one)
