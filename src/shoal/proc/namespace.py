"""Control a pid namespace from outside."""

import contextlib
import os
import signal
from pathlib import Path

from shoal.proc.process import is_ended, pidfd_ended

LOOKS = 20
PF_EXITING = 4
PARENT, FLAGS, BEGAN = 1, 6, 19  # fields of /proc/PID/stat, counted from the state


class Namespace:
    """The processes of one sandbox, by the pidfd of their pid 1.

    The kernel ends a namespace with its pid 1, and reports pid 1 as ended only when nothing else is left.
    """

    def __init__(self, pid: int, pidfd: int, *, ours: bool) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._ours = ours

    def began(self) -> int | None:
        """Return when pid 1 started, in ticks since boot; `None` once it has ended or is not ours."""
        began = _field(self.pid, BEGAN)
        # Checked last: while it lives its pid is not reused, so what was read is about it.
        return began if self._ours and not is_ended(self._pidfd) else None

    def open_network(self) -> int | None:
        """Open the network namespace of pid 1; `None` once it has ended, or is not ours."""
        try:
            opened = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        # Looked at last: while it lives its pid is not reused, so what was opened is its own.
        if self._ours and not is_ended(self._pidfd):
            return opened
        os.close(opened)
        return None

    def ask_to_stop(self) -> None:
        """Send TERM to what pid 1 started: the agent itself."""
        for pid in (_children(self.pid) or ()) if self._ours else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill pid 1, and with it everything."""
        self._send(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the process, until it is resumed."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process."""
        self._send(signal.SIGCONT)

    async def kill_all(self, timeout: float) -> bool:
        """Kill pid 1 and wait until no process is left; `False` if one remains after *timeout*.

        Pid 1 is killed in every case: an agent can trace it and make it do anything. Once it is exiting it runs nothing
        more, and without children it is alone. Waiting for its complete end would take 10-15 ms more, in which the
        kernel removes the mounts.
        """
        self.kill()
        for _ in range(LOOKS):
            if self._ours and _is_over(self.pid):
                return True
            if await pidfd_ended(self._pidfd, 0.001):
                return True
        return await pidfd_ended(self._pidfd, timeout)

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self._pidfd)

    def _send(self, signum: signal.Signals) -> None:
        if self._ours:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signum)


def find_namespace(pid: int, *, parent: int) -> Namespace | None:
    """Open the pid 1 that *parent* started; `None` if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Checked after the pidfd is open: a pid that was reused meanwhile is not a child of *parent*.
    # Then the sandbox is dying with its parent, and is only watched, never signalled.
    return Namespace(pid, pidfd, ours=_field(pid, PARENT) == parent)


def _is_over(pid: int) -> bool:
    """Return whether a single-threaded process is exiting and has no children."""
    with contextlib.suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
        return threads == [str(pid)] and bool((_field(pid, FLAGS) or 0) & PF_EXITING) and _children(pid) == []
    return False


def _field(pid: int, at: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[at])
    return None


def _children(pid: int) -> list[int] | None:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return None
