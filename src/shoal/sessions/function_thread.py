"""A function of the program's own as an agent, in a thread: a named border, for code that is trusted."""

import asyncio
import contextlib
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Unavailable, first_of
from shoal.proc import Exit, Stream
from shoal.sessions.agent_process import AgentEnd, Ending
from shoal.sessions.function_spec import arguments
from shoal.sessions.output_log import OutputLog
from shoal.sessions.worker import Session


async def run_in_thread(session: Session) -> AgentEnd:
    """Call the worker's function on its workspace; when its time is over or it has to stop, it is left to itself."""
    worker, workspace = session.worker, session.workspace
    if not workspace.is_visible or worker.function is None:
        raise Unavailable("execution_mode thread", "this workspace is seen only in a box", "ask for worktree")
    said = _call_in_thread(worker.function, (worker.task.prompt, workspace.path)[: arguments(worker.function)])
    try:
        async with asyncio.TaskGroup() as group:
            stopped = group.create_task(session.stop.wait())
            await asyncio.wait((said, stopped), timeout=worker.seconds, return_when=asyncio.FIRST_COMPLETED)
            ending = Ending.BY_ITSELF if said.done() else Ending.STOP if stopped.done() else Ending.TIME
            stopped.cancel()
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    # What goes on by itself may still write there: nobody else must get these files.
    workspace.can_recycle = workspace.can_recycle and said.done()
    code = _log_outcome(said.result(), session.log) if said.done() else None
    session.log.close()
    return AgentEnd(ending=ending, exit=Exit(code, None), log=session.log)


@dataclass(frozen=True, slots=True)
class _ThreadOutcome:
    """What a function gave, or the trace of what it raised."""

    stream: Stream
    text: bytes
    code: int


def _log_outcome(outcome: _ThreadOutcome, log: OutputLog) -> int:
    log.feed(outcome.stream, outcome.text)
    return outcome.code


def _call_in_thread(function: Callable[..., object], given: tuple[str | Path, ...]) -> "asyncio.Future[_ThreadOutcome]":
    """Call *function* in a thread of its own that nobody has to wait for, not even the end of the process."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_ThreadOutcome] = loop.create_future()

    def work() -> None:
        said = _outcome(function, given)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(lambda: None if outcome.done() else outcome.set_result(said))

    threading.Thread(target=work, name="shoal-agent", daemon=True).start()
    return outcome


def _outcome(function: Callable[..., object], given: tuple[str | Path, ...]) -> _ThreadOutcome:
    try:
        value = function(*given)
        value = asyncio.run(_await_value(value)) if inspect.isawaitable(value) else value
        text = "" if value is None else str(value)
    except BaseException as error:  # whatever it raises is its failure, and never ours
        trace = "".join(traceback.format_exception(error))
        return _ThreadOutcome(Stream.STDERR, trace.encode(errors="replace"), 1)
    return _ThreadOutcome(Stream.STDOUT, text.encode(errors="replace"), 0)


async def _await_value(value: Awaitable[object]) -> object:
    return await value
