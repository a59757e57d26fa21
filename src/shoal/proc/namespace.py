"""A pid namespace seen from outside: asked to stop, killed, and seen empty."""

import contextlib
import os
import signal
from pathlib import Path

from shoal.proc.exit import pidfd_ended

LOOKS = 20
PF_EXITING = 4


class Namespace:
    """The processes of one box, by the pidfd of their pid 1.

    The kernel ends a namespace with its pid 1, and reports pid 1 as ended only when nobody else is left.
    """

    def __init__(self, pid: int, pidfd: int, *, ours: bool) -> None:
        self._pid = pid
        self._pidfd = pidfd
        self._ours = ours

    def ask_to_stop(self) -> None:
        """Send TERM to what pid 1 started: the agent itself."""
        for pid in (_children(self._pid) or ()) if self._ours else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill pid 1, and with it everything."""
        if self._ours:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def emptied(self, timeout: float) -> bool:
        """Kill pid 1 and see that nobody is left; `False` when somebody still is after *timeout*.

        Pid 1 is killed in every case: an agent can trace it and make it anything. Once it is exiting it runs nothing
        more, and without children it was alone; to wait for its whole end would cost 10-15 ms more, which the kernel
        needs to take the mounts down.
        """
        self.kill()
        for _ in range(LOOKS):
            if self._ours and _is_over(self._pid):
                return True
            if await pidfd_ended(self._pidfd, 0.001):
                return True
        return await pidfd_ended(self._pidfd, timeout)

    def close(self) -> None:
        """Let the pidfd go."""
        os.close(self._pidfd)


def adopt(pid: int, *, parent: int) -> Namespace | None:
    """Take hold of the pid 1 that *parent* started; `None` when it is gone already."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Seen after the pidfd was taken: a pid that was given to a stranger meanwhile is not a child of *parent*.
    # Then the box is dying with its parent, and is only watched, never signalled.
    return Namespace(pid, pidfd, ours=_parent(pid) == parent)


def _is_over(pid: int) -> bool:
    """Say whether a process of one thread is exiting and has no children."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        threads = os.listdir(f"/proc/{pid}/task")
        flags = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[6])
        return threads == [str(pid)] and bool(flags & PF_EXITING) and _children(pid) == []
    return False


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return None


def _children(pid: int) -> list[int] | None:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return None
