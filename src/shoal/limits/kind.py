"""The protocols of limit enforcers and of the groups that they make."""

import contextlib
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from shoal.model.command import Command
from shoal.model.limits import ResourceLimits
from shoal.proc.namespace import Namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """What a group has used; `None` where that is unknown.

    *forks_refused* counts the processes that it could not start: a number that grows from poll to poll shows a bomb.
    """

    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    cpu_seconds: float | None = None
    pids: int | None = None
    forks_refused: int | None = None


class LimitGroup(Protocol):
    """The processes of one agent, limited together. Its verdict and usage stay readable after its end."""

    @property
    def name(self) -> str:
        """The name that was asked for."""

    def wrap(self, command: Command) -> Command:
        """Make *command* join the group before it does anything else.

        Wrap the sandboxed command: joining runs with that command's own environment.
        """

    def breach(self) -> str | None:
        """Return `memory` or `pids` if that limit was reached, else `None`."""

    def usage(self) -> ResourceUsage:
        """Return the usage."""

    def cpu_seconds(self) -> float | None:
        """Return the CPU seconds used so far, cheaply; `None` where the counter is too coarse."""

    def pids(self) -> tuple[int, ...]:
        """Return its current processes."""

    def freeze(self) -> None:
        """Freeze all of its processes until `thaw`; raises `OSError`, also if the enforcer cannot freeze."""

    def thaw(self) -> None:
        """Let frozen processes run again; otherwise do nothing."""

    def end_rest(self) -> None:
        """Kill the processes that outlived the main process, if they are known at once."""

    def kill(self) -> None:
        """Kill everything in it; only `polling` can miss a process that keeps forking."""


class Enforcer(Protocol):
    """A kind of enforcement."""

    @property
    def name(self) -> str:
        """Its name in `KINDS` of `choose.py`."""

    @property
    def holds(self) -> frozenset[str]:
        """Which of `memory`, `cpu` and `pids` are enforced for each agent."""

    @property
    def holds_fleet(self) -> frozenset[str]:
        """Which of them are enforced for all agents together."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """Sentences about what is not enforced, or not exactly."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The control groups of all agents of this coordinator; none if the kernel has no such groups."""

    @property
    def can_freeze(self) -> bool:
        """Return whether groups can be frozen."""

    def group(self, name: str, limits: ResourceLimits) -> AbstractContextManager[LimitGroup]:
        """Make a group; on exit, kill its processes and remove it.

        Raises `Broken` if it cannot be made, or if one of its processes does not die within seconds.
        """

    def hold_shared(self) -> AbstractContextManager[None]:
        """Hold what all groups share, so that it is not created and removed for each of them."""

    def sweep(self) -> None:
        """Remove the groups of dead coordinators, and kill the processes in them."""


AT_ONCE = 64  # descriptors that are open at a time


def kill_each(members: Callable[[], Iterable[int]]) -> None:
    """Kill the current *members*; a pid that is no longer a member once its pidfd is open is left alone."""
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

# $1 … up to `--` are files; writing 0 into one joins it. That must be done before anything untrusted runs.
JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'


def before(command: Command, script: str, *words: str) -> Command:
    """Run *script* with *words* as its arguments, then *command* in the same process."""
    return replace(command, argv=(SHELL, "-c", script, "sh", *words, *command.argv))
