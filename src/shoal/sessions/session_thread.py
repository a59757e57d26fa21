"""Run a session's event loop in a thread, so that synchronous code and other loops can use it."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from shoal.errors import BadInput
from shoal.model.permissions import PermissionManager
from shoal.sessions.command_session import CommandResult, OpenSession

T = TypeVar("T")


class HeldWorkspace(Protocol):
    """A workspace in which an agent's tools run commands."""

    permission_manager: PermissionManager

    async def run(
        self, command: str | Sequence[str], *, timeout: float | None = None, stdin: bytes | None = None
    ) -> CommandResult:
        """Run *command* in the session's sandbox."""


class SessionLoop:
    """Runs a session's coroutines in a thread; synchronous code and tasks of other loops may wait for them."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: set[_Call[Any]] = set()
        # A daemon: a program that never leaves its `with` block must still be able to exit.
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"shoal {name}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* and wait for it; when interrupted, cancel it and wait for its end first."""
        call = _Call(coroutine, self._loop, self._calls)
        try:
            return call.future.result()
        except BaseException:
            call.end()
            raise

    async def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* for a task of another loop; when cancelled, wait for its end first."""
        call = _Call(coroutine, self._loop, self._calls)
        try:
            return await asyncio.shield(asyncio.wrap_future(call.future))
        except asyncio.CancelledError:
            await asyncio.to_thread(call.end)
            raise

    def lend(self, session: OpenSession) -> "LentWorkspace":
        """Return a view of *session* that any loop may use."""
        return LentWorkspace(self, session)

    def close(self) -> None:
        """End what is running, and the thread."""
        for call in tuple(self._calls):
            call.end()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _Call(Generic[T]):
    """A coroutine running in the session's loop; *future* gets its result."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, calls: set[Any]) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._calls = calls
        self._is_over = threading.Event()
        self.future: Future[T] = Future()
        loop.call_soon_threadsafe(self._begin)

    def end(self) -> None:
        """Cancel it and wait for its end: a command in it may still be ending."""
        if not self._is_over.is_set():
            self._loop.call_soon_threadsafe(lambda: self._task.cancel())
            self._is_over.wait()

    def _begin(self) -> None:
        self._calls.add(self)
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[T]) -> None:
        self._calls.discard(self)
        if task.cancelled():
            self.future.cancel()
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())
        self._is_over.set()


class LentWorkspace:
    """An open session as a workspace for tools that run in another loop."""

    def __init__(self, loop: SessionLoop, session: OpenSession) -> None:
        self._loop = loop
        self._session = session
        self.permission_manager = session.permission_manager

    async def run(
        self, command: str | Sequence[str], *, timeout: float | None = None, stdin: bytes | None = None
    ) -> CommandResult:
        """Run *command* in the session's sandbox, in its workspace."""
        if self._session.result is not None:
            raise BadInput("the session is closed; use its tools inside the `with` block")
        return await self._loop.wait_for(self._session.run(command, timeout=timeout, stdin=stdin))
