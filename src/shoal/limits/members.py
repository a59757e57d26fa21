"""Signal the members of a group by pidfd, so that no process with a reused pid is hit."""

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from shoal.model.command import Command
from shoal.proc.namespace import Namespace

AT_ONCE = 64  # descriptors that are open at a time


def kill_each(members: Callable[[], Iterable[int]]) -> None:
    """Kill the current *members*; a process that is no longer one when its pidfd is open is spared."""
    signal_each(members, Namespace.kill)


def signal_each(members: Callable[[], Iterable[int]], send: Callable[[Namespace], None]) -> None:
    """Signal the current *members*."""
    pids = list(members())
    for first in range(0, len(pids), AT_ONCE):
        with contextlib.ExitStack() as held:
            found = {pid: _hold_process(pid, held) for pid in pids[first : first + AT_ONCE]}
            still = set(members())
            for pid, process in found.items():
                if process is not None and pid in still:
                    send(process)


def _hold_process(pid: int, held: contextlib.ExitStack) -> Namespace | None:
    """Open a pidfd for a process."""
    try:
        process = Namespace(pid, os.pidfd_open(pid), ours=True)
    except OSError:  # gone
        return None
    held.callback(process.close)
    return process


SHELL = "/bin/sh"

# $1 … up to `--` are files; to write 0 into one is to join. It must be over before anything untrusted runs.
JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'


def before(command: Command, script: str, *words: str) -> Command:
    """Run *script* with *words* as its arguments, then *command* in the same process."""
    return replace(command, argv=(SHELL, "-c", script, "sh", *words, *command.argv))
