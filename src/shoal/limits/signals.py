"""Killing the members of a group, and nobody who was given a member's number meanwhile."""

import contextlib
import os
from collections.abc import Callable, Iterable

from shoal.proc.namespace import Namespace

AT_ONCE = 64  # descriptors that are open at a time


def kill_each(members: Callable[[], Iterable[int]]) -> None:
    """Kill all that are *members* now; who is not one any more when we hold on to the number is spared."""
    pids = list(members())
    for first in range(0, len(pids), AT_ONCE):
        with contextlib.ExitStack() as held:
            found = {pid: _held(pid, held) for pid in pids[first : first + AT_ONCE]}
            still = set(members())
            for pid, process in found.items():
                if process is not None and pid in still:
                    process.kill()


def _held(pid: int, held: contextlib.ExitStack) -> Namespace | None:
    """Take hold of a process; to `proc`, whose door signals are, the members of a box are all such handles."""
    try:
        process = Namespace(pid, os.pidfd_open(pid), ours=True)
    except OSError:  # gone
        return None
    held.callback(process.close)
    return process
