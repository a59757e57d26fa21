"""How a process ended, seen through its pidfd."""

import asyncio
import os
import select
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: *code* is `None` when a signal ended it."""

    code: int | None
    signal: int | None


async def pidfd_ended(pidfd: int, timeout: float) -> bool:
    """Wait until the process behind *pidfd* has ended, and say whether it did in time."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    own = os.dup(pidfd)  # a loop knows one reader per descriptor: two waiters must not share it
    loop.add_reader(own, ended.set)
    try:
        async with asyncio.timeout(timeout):
            await ended.wait()
    except TimeoutError:
        return is_ended(pidfd)
    finally:
        loop.remove_reader(own)
        os.close(own)
    return True


def is_ended(pidfd: int, timeout: float = 0.0) -> bool:
    """Say whether the process has ended; a *timeout* above 0 blocks the thread."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(timeout * 1000))


def exit_of(pidfd: int) -> Exit | None:
    """Read how a child ended and leave it unreaped, so that its pid and group id stay reserved."""
    seen = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if seen is None:
        return None
    if seen.si_code == os.CLD_EXITED:
        return Exit(code=seen.si_status, signal=None)
    return Exit(code=None, signal=seen.si_status)
