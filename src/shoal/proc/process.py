"""A running process, ended with its whole group."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from shoal.errors import Blocked, Broken
from shoal.model.command import Command
from shoal.proc.output import HeadBuffer
from shoal.proc.pipes import OutputTarget, PipeReader, PipeWriter
from shoal.proc.spawn import Child, Stream, spawn


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
    """Return whether the process has ended; a *timeout* above 0 blocks."""
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


Sink = Callable[[Stream, bytes], float | None]

RATE_BYTES = 64 * 2**20
REPORT_BYTES = 64 * 1024
QUIET = 0.5  # after the exit, the pipes are given up when nothing came for this long,
DRAIN = 1.0  # and in any case after this: a daemon may hold them open for ever
DEATH = 10.0  # only a process stuck in the kernel outlives SIGKILL by so much
BURIAL = 1.0
PATIENCE, PAUSE = 60.0, 0.1


@contextlib.asynccontextmanager
async def open_process(
    command: Command,
    *,
    sink: Sink,
    grace: float = 2.0,
    rate_bytes: int = RATE_BYTES,
    gone: Callable[[], None] | None = None,
) -> AsyncIterator["Process"]:
    """Run *command* in a session and process group of its own, and leave nothing of it behind.

    On leaving (normal, error, cancel) the group gets TERM, *grace*, KILL. *sink* gets the raw chunks on the loop's
    thread and must not block; it may answer for how many seconds it wants no more of that stream, whose writer then
    blocks. If it raises, the group is killed and `wait` and the leaving raise that error. *gone* is called when the
    process itself has ended, before the rest of its output is read.
    """
    process = Process(await _spawn(command), grace, gone)
    with contextlib.ExitStack() as undo:
        undo.callback(process._bury)
        process._watch(sink, rate_bytes)
        try:
            yield process
        finally:
            if not process._is_left:
                await process.end()
    process._raise_fault()


async def _spawn(command: Command) -> Child:
    """Start *command*; if the machine is out of processes or descriptors, retry for a while."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return spawn(command)
        except Blocked:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(PAUSE)


class Process:
    """A process that `open_process` holds; its pid is never signalled once it could be another's."""

    def __init__(self, child: Child, grace: float, gone: Callable[[], None] | None = None) -> None:
        self.pid = child.popen.pid
        self._child = child
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self._feed = None if child.stdin is None else PipeWriter(child.stdin)
        self._taps: list[PipeReader] = []
        self._reports: dict[str, _Reported] = {}
        self._exit: Exit | None = None
        self._gone = asyncio.Event()
        self._told_gone = gone
        self._drained = asyncio.Event()
        self._exited_at = 0.0
        self._drain_timer: asyncio.TimerHandle | None = None
        self._fault: Exception | None = None
        self._reaped = False
        self._is_left = False

    @property
    def is_gone(self) -> bool:
        """Whether the process itself has ended."""
        return self._gone.is_set()

    async def wait(self) -> Exit:
        """Wait for the process's own exit and then, at most a second, for the rest of its output."""
        await self._drained.wait()
        self._raise_fault()
        return self._verdict()

    async def end(self, grace: float | None = None) -> Exit:
        """Send TERM to the group, wait *grace* for the process, KILL the group; a second time changes nothing."""
        if not self._gone.is_set():
            self._signal_group(signal.SIGTERM)
            await self._wait_until_gone(self._grace if grace is None else grace)
        self.kill()
        if not await self._wait_until_gone(DEATH):
            raise Broken(f"process {self.pid} still exists {DEATH:.0f} s after SIGKILL; the kernel has not released it")
        await self._drained.wait()
        return self._verdict()

    def kill(self) -> None:
        """Send SIGKILL to the whole group at once; after the end it does nothing."""
        if self._reaped:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._child.pidfd, signal.SIGKILL)
        self._signal_group(signal.SIGKILL)

    def leave_running(self) -> None:
        """Let the process outlive us: leaving `open_process` reads what it has written so far, and ends nothing."""
        self._is_left = True
        for tap in self._taps:
            tap.drain()

    async def write(self, message: bytes) -> None:
        """Write to an `OpenInput`; raise BrokenPipeError once its reader is gone."""
        if self._feed is None:
            raise BrokenPipeError("this process was started without a live standard input")
        await self._feed.write(message)

    def close_input(self) -> None:
        """Close the process's input."""
        if self._feed is not None:
            self._feed.close()

    def find_socket(self, name: str) -> socket.socket:
        """Return our end of `SharedSocket(name)`, which does not block; it is closed with the process."""
        return self._child.sockets[name]

    async def report(self, name: str, timeout: float) -> bytes:
        """Return what the child wrote on `Report(name)` until it closed it or exited, at most 64 KiB of it.

        Raises TimeoutError when neither has come in time.
        """
        report = self._reports[name]
        async with asyncio.timeout(timeout):
            await report.tap.closed.wait()
        return report.buffer.content()

    def _watch(self, sink: Sink, rate_bytes: int) -> None:
        # All taps before the first reader: whatever fails from here on, `_bury` closes every descriptor.
        for stream, fd in self._child.outputs.items():
            self._tap(fd, partial(sink, stream), rate_bytes)
        for name, fd in self._child.reports.items():
            buffer = HeadBuffer(REPORT_BYTES)
            self._reports[name] = _Reported(self._tap(fd, buffer.feed, rate_bytes), buffer)
        for tap in self._taps:
            tap.open()
        self._loop.add_reader(self._child.pidfd, self._note_exit)

    def _tap(self, fd: int, pour: Callable[[bytes], float | None], rate_bytes: int) -> PipeReader:
        tap = PipeReader(fd, OutputTarget(pour=pour, closed=self._note_closed, failed=self._fail), rate_bytes)
        self._taps.append(tap)
        return tap

    def _note_exit(self) -> None:
        try:
            self._exit = exit_of(self._child.pidfd)
        except ChildProcessError:  # the pid may be another's by now: no signal to it from here on
            self._reaped = True
            self._exit = Exit(code=None, signal=None)
            self._fault = Broken(f"someone else reaped process {self.pid}; SIGCHLD must not be ignored")
        if self._exit is None:
            return
        self._loop.remove_reader(self._child.pidfd)
        self._gone.set()
        if self._told_gone is not None:
            self._told_gone()
        self._exited_at = self._loop.time()
        for tap in self._taps:
            tap.wake()
        self._drain()

    def _drain(self) -> None:
        quiet_since = max(self._exited_at, *(tap.touched for tap in self._taps))
        due = min(self._exited_at + DRAIN, quiet_since + QUIET)
        if self._loop.time() >= due:
            for tap in self._taps:
                tap.drain()
        else:
            self._drain_timer = self._loop.call_at(due, self._drain)
        self._note_closed()

    def _note_closed(self) -> None:
        if self._gone.is_set() and all(tap.closed.is_set() for tap in self._taps):
            if self._drain_timer is not None:
                self._drain_timer.cancel()
            self._drained.set()

    def _fail(self, error: Exception) -> None:
        self._fault = self._fault or error
        self.kill()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _verdict(self) -> Exit:
        assert self._exit is not None, "asked before the exit was seen"  # noqa: S101 - for the type checker
        return self._exit

    async def _wait_until_gone(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self._gone.is_set()

    def _signal_group(self, number: signal.Signals) -> None:
        # The unreaped leader, even as a zombie, keeps the group's number from being given away.
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _bury(self) -> None:
        if not self._is_left:
            self.kill()
        # Only a second cancel comes here with the child alive; blocking until it is dead is then the sure way.
        if not self._gone.is_set() and not self._is_left and is_ended(self._child.pidfd, BURIAL):
            self._note_exit()
        self.close_input()
        for shared in self._child.sockets.values():
            shared.close()
        for tap in self._taps:
            tap.close()
        self._loop.remove_reader(self._child.pidfd)
        self._child.popen.poll()
        self._reaped = True
        os.close(self._child.pidfd)


@dataclass(frozen=True, slots=True)
class _Reported:
    """A child's output on one of its report pipes."""

    tap: PipeReader
    buffer: HeadBuffer
