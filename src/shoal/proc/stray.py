"""End a process that a killed Shoal left, known by the folder that it works in."""

import os
import signal
from pathlib import Path

from shoal.proc.process import pidfd_ended


async def end_stray(pid: int, signum: signal.Signals, *, cwd: Path, timeout: float) -> None:
    """Send *signum*, and SIGKILL after *timeout*, to process *pid* if it still works in *cwd*; else do nothing."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # looked at after the descriptor is open: from here on, the number cannot become another's
        if not os.path.samefile(f"/proc/{pid}/cwd", cwd):  # noqa: PTH121
            return
        for number in (signum, signal.SIGKILL):
            signal.pidfd_send_signal(pidfd, number)
            if await pidfd_ended(pidfd, timeout):
                return
    finally:
        os.close(pidfd)
