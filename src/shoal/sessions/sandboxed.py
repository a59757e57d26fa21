"""Run a command in a sandbox: its output counts only once the sandbox is checked, and no process survives."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

from shoal import proc
from shoal.errors import Broken, SandboxBroken
from shoal.limits.guard import Guard
from shoal.model.command import Command
from shoal.model.policy import Policy
from shoal.proc import Exit, Process, Sink, Stream
from shoal.proc.namespace import Namespace, find_namespace
from shoal.sandboxes.kind import START, Sandbox, ready_line
from shoal.sessions.session_dir import SYSTEM_PATH

Joiner = Callable[[Command], Command]
OnStart = Callable[[int], None]
"""Is told the pid before anything that the command says."""
Listen = Callable[[Namespace], Awaitable[None]]
"""Begins to listen in the sandbox's own network, before its command runs."""

START_SECONDS = 30.0
EMPTY_SECONDS = 20.0
FIRST_LINE_BYTES = 64 * 1024
HELD_BYTES = 2 * 2**20  # the largest pipe, and what was read of it before


class SandboxCheck:
    """Passes output on once the first line on stderr has confirmed the sandbox."""

    def __init__(self, sandbox: Sandbox, token: str, sink: Sink, opened: Callable[[], None] | None = None) -> None:
        self._wall = sandbox.name
        self._expected = ready_line(token)
        self._sink = sink
        self._opened = opened
        self._first = b""
        self._held = b""
        self.is_open = False

    def feed(self, stream: Stream, data: bytes) -> float | None:
        """Take a chunk; until the check succeeds, inspect the start of stderr and hold stdout back.

        Our line is written before anything else, but on a busy host the other pipe may be read first.
        """
        if self.is_open:
            return self._sink(stream, data)
        if stream is Stream.STDERR:
            self._first = (self._first + data)[:FIRST_LINE_BYTES]
            self._try_to_open()
        else:
            self._held = (self._held + data)[:HELD_BYTES]
        return None

    def assert_open(self) -> None:
        """Raise `SandboxBroken` with the output so far."""
        if not self.is_open:
            output = self._first.decode(errors="replace").strip()[-400:] or "it did not start, and printed nothing"
            raise SandboxBroken(self._wall, output)

    def _try_to_open(self) -> None:
        # bubblewrap may print a warning before our line; the agent cannot print anything before it.
        before, found, rest = self._first.partition(self._expected)
        if found and (not before or before.endswith(b"\n")):
            self.is_open = True
            if self._opened is not None:
                self._opened()
            for stream, held in ((Stream.STDOUT, self._held), (Stream.STDERR, rest)):
                if held:
                    self._sink(stream, held)
            self._held = b""


class SandboxedProcess:
    """A running command in its sandbox."""

    def __init__(self, process: Process, check: SandboxCheck, namespace: Namespace | None) -> None:
        self._process = process
        self._check = check
        self._namespace = namespace
        self.pid = process.pid

    async def wait(self) -> Exit:
        """Wait for the main process; raise `SandboxBroken` if its sandbox never came up."""
        exit_ = await self._process.wait()
        self._check.assert_open()
        return exit_

    async def end(self, grace: float) -> Exit:
        """Ask it to stop, and kill it after *grace*."""
        if self._namespace is None:
            return await self._process.end(grace)
        if self._check.is_open:  # before that the agent has not started, and needs no time to stop
            self._namespace.ask_to_stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    return await self._process.wait()
        self._namespace.kill()
        return await self._process.wait()

    async def write(self, message: bytes) -> None:
        """Write to its input, an `OpenInput`; raise BrokenPipeError once nothing reads it."""
        await self._process.write(message)

    def close_input(self) -> None:
        """Close its input."""
        self._process.close_input()

    async def kill_all(self) -> None:
        """Kill all remaining processes and wait until none is left."""
        if self._namespace is None:
            return
        if not await self._namespace.kill_all(EMPTY_SECONDS):
            raise Broken(f"the processes in the sandbox of pid {self.pid} cannot be killed; its files stay as they are")


@contextlib.asynccontextmanager
async def open_sandboxed(
    sandbox: Sandbox,
    command: Command,
    policy: Policy,
    *,
    sink: Sink,
    join: Joiner | None = None,
    begun: OnStart | None = None,
    gone: Callable[[], None] | None = None,
    guard: Guard | None = None,
    listen: Listen | None = None,
) -> AsyncIterator[SandboxedProcess]:
    """Start *command* in *sandbox*, after *join* has put it in a control group.

    On `network: gateway` it runs once *listen* has returned. On leaving, the sandbox has been killed and seen empty;
    *gone* ends what is left without a launcher, and *guard* ends everybody in it when we are killed: give one wherever
    an agent's own programs run.
    """
    async with hold_turn() as turn:
        check = SandboxCheck(sandbox, policy.token, sink, turn.end)
        ended = gone if policy.is_guarded else None
        async with proc.open_process(
            _wrap_command(sandbox, command, policy, join), sink=check.feed, gone=ended
        ) as process:
            if begun is not None:
                begun(process.pid)
            namespace = await _namespace(process) if sandbox.mounts else None
            sandboxed = SandboxedProcess(process, check, namespace)
            try:
                if guard is not None and namespace is not None:
                    await guard.watch(namespace)
                if sandbox.can_listen and policy.has_listener:
                    await _let_start(process, namespace, listen)
                yield sandboxed
            finally:
                try:
                    await sandboxed.kill_all()
                finally:
                    if namespace is not None:
                        namespace.close()


def _wrap_command(sandbox: Sandbox, command: Command, policy: Policy, join: Joiner | None) -> Command:
    if join is None:  # the guard kills only processes in a group
        return sandbox.wrap(command, replace(policy, is_guarded=False))
    return join(sandbox.wrap(command, policy))


async def _let_start(process: Process, namespace: Namespace | None, listen: Listen | None) -> None:
    """Let a sandbox that waits begin, with somebody to listen in it if there is anybody."""
    if listen is not None and namespace is not None:
        async with asyncio.timeout(START_SECONDS):
            await listen(namespace)
    process.find_socket(START).close()


async def _namespace(process: Process) -> Namespace | None:
    info = await process.report("info", START_SECONDS)
    try:
        pid = int(json.loads(info)["child-pid"])
    except (ValueError, KeyError, TypeError):
        return None  # it ended before it had a namespace
    return find_namespace(pid, parent=process.pid)


def git_environment(gitdir: Path, tree: Path) -> dict[str, str]:
    """Return the variables for git with this gitdir, its index and *tree*."""
    return {
        "PATH": ":".join(SYSTEM_PATH),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_DIR": str(gitdir),
        "GIT_WORK_TREE": str(tree),
        "GIT_INDEX_FILE": str(gitdir / "index"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "",
    }


AT_ONCE = 2 * (os.cpu_count() or 1)
LONGEST_SECONDS = 30.0

# One queue per event loop, whatever its runs are: they share the cores.
_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class StartTurn:
    """The right to start; it ends when the sandbox is up, or after a while, so that nobody waits for one that hangs."""

    def __init__(self, line: asyncio.Semaphore) -> None:
        self._line = line
        self._limit = asyncio.get_running_loop().call_later(LONGEST_SECONDS, self.end)
        self.is_over = False

    def end(self) -> None:
        """Let the next one start; calling it again does nothing."""
        if not self.is_over:
            self.is_over = True
            self._limit.cancel()
            self._line.release()


_begun: ContextVar[StartTurn | None] = ContextVar("_begun", default=None)
"""The turn that this task already has."""


@contextlib.asynccontextmanager
async def hold_turn() -> AsyncIterator[StartTurn]:
    """Wait for a turn, or use the one that this task holds; on exit it is over."""
    turn = _begun.get()
    if turn is None or turn.is_over:
        line = _lines.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
        await line.acquire()
        turn = StartTurn(line)
    try:
        yield turn
    finally:
        turn.end()


@contextlib.asynccontextmanager
async def hold_turn_early() -> AsyncIterator[None]:
    """Take the turn before the start is prepared; the next sandbox of this task uses it."""
    async with hold_turn() as turn:
        _begun.set(turn)
        yield
