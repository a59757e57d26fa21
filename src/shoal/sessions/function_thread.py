"""Python functions as agents: run by a sandboxed interpreter, or called in a thread of this process."""

import asyncio
import contextlib
import inspect
import json
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BadInput, Unavailable, first_error
from shoal.model.agent import AgentSpec
from shoal.proc import Exit, Stream
from shoal.sessions.agent_process import AgentEnd, Ending
from shoal.sessions.output_log import OutputLog
from shoal.sessions.worker import Session


async def run_in_thread(session: Session) -> AgentEnd:
    """Call the worker's function on its workspace; on timeout or stop, abandon it."""
    worker, workspace = session.worker, session.workspace
    if not workspace.is_visible or worker.function is None:
        raise Unavailable("execution_mode thread", "this workspace is visible only in a sandbox", "ask for worktree")
    call = _call_in_thread(worker.function, (worker.task.prompt, workspace.path)[: arguments(worker.function)])
    try:
        async with asyncio.TaskGroup() as group:
            stopped = group.create_task(session.stop.wait())
            await asyncio.wait((call, stopped), timeout=worker.seconds, return_when=asyncio.FIRST_COMPLETED)
            ending = Ending.BY_ITSELF if call.done() else Ending.STOP if stopped.done() else Ending.TIME
            stopped.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    # An abandoned function may still write there: nobody else may get these files.
    workspace.can_recycle = workspace.can_recycle and call.done()
    code = _log_outcome(call.result(), session.log) if call.done() else None
    session.log.close()
    return AgentEnd(ending=ending, exit=Exit(code, None), log=session.log)


@dataclass(frozen=True, slots=True)
class _ThreadOutcome:
    """What a function returned, or the traceback of its error."""

    stream: Stream
    text: bytes
    code: int


def _log_outcome(outcome: _ThreadOutcome, log: OutputLog) -> int:
    log.feed(outcome.stream, outcome.text)
    return outcome.code


def _call_in_thread(function: Callable[..., object], given: tuple[str | Path, ...]) -> "asyncio.Future[_ThreadOutcome]":
    """Call *function* in a thread that nothing has to wait for, not even the exit of the process."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_ThreadOutcome] = loop.create_future()

    def work() -> None:
        result = _outcome(function, given)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if outcome.done() else outcome.set_result(result))

    threading.Thread(target=work, name="shoal-agent", daemon=True).start()
    return outcome


def _outcome(function: Callable[..., object], given: tuple[str | Path, ...]) -> _ThreadOutcome:
    try:
        value = function(*given)
        value = asyncio.run(_await_value(value)) if inspect.isawaitable(value) else value
        text = "" if value is None else str(value)
    except BaseException as error:  # whatever it raises is its failure, never ours
        trace = "".join(traceback.format_exception(error))
        return _ThreadOutcome(Stream.STDERR, trace.encode(errors="replace"), 1)
    return _ThreadOutcome(Stream.STDOUT, text.encode(errors="replace"), 0)


async def _await_value(value: Awaitable[object]) -> object:
    return await value


REMEDY = "define it with `def` at the top of a module"


def function_agent(function: Callable[..., object], private: tuple[Path, ...]) -> AgentSpec:
    """Make an agent of *function*, called with the prompt and, if it takes two arguments, the workspace's path.

    Modules of the repository are imported from the agent's own workspace; *private* folders are never shown.
    """
    qualname = getattr(function, "__qualname__", "")
    file = _file(function)
    is_bound = inspect.ismethod(function) and not inspect.isclass(function.__self__)
    if not inspect.isroutine(function) or is_bound or "<" in qualname or file is None:
        raise BadInput(f"{qualname or function!r:.80} cannot be imported by another process; {REMEDY}")
    folders = [Path(folder) for folder in sys.path if folder and Path(folder).is_dir()]
    shown = [folder for folder in folders if not any(place.is_relative_to(folder) for place in private)]
    top = private[0]
    order = {
        "module": function.__module__,
        "qualname": qualname,
        "file": str(file),
        "source": None if _is_importable(function, file, shown) else file.read_text(errors="replace"),
        "arguments": arguments(function),
        "path": [str(folder) for folder in shown],
        "inside": [
            str(folder.relative_to(top)) for folder in folders if folder.is_relative_to(top) and folder not in shown
        ],
        "needs": [str(folder) for folder in _outermost(shown)],
    }
    return AgentSpec(name=qualname.replace(".", "-"), adapter="function", script=json.dumps(order))


def _file(function: Callable[..., object]) -> Path | None:
    try:
        found = inspect.getsourcefile(function)
    except TypeError:
        return None
    return Path(found).resolve() if found and Path(found).is_file() else None


def _is_importable(function: Callable[..., object], file: Path, shown: list[Path]) -> bool:
    return function.__module__ != "__main__" and any(file.is_relative_to(folder) for folder in shown)


def arguments(function: Callable[..., object]) -> int:
    """Return how many arguments it takes: the prompt, or the prompt and the path of the workspace."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [parameter for parameter in inspect.signature(function).parameters.values() if parameter.kind in kinds]
    needed = [parameter for parameter in taken if parameter.default is inspect.Parameter.empty]
    if not taken or len(needed) > 2:
        raise BadInput(f"{function.__qualname__} must take the prompt, or the prompt and the workspace's path")
    return min(len(taken), 2)


def _outermost(folders: list[Path]) -> list[Path]:
    real = {folder.resolve() for folder in folders}
    return sorted(
        folder for folder in real if not any(other != folder and folder.is_relative_to(other) for other in real)
    )
