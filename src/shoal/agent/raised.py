"""Telling an end that a tool raised itself from one that comes from outside: a signal, a cancellation, a close."""

import asyncio
import dis
import functools
import signal
from collections.abc import Iterator
from types import CodeType, TracebackType


def is_own(error: BaseException) -> bool:
    """Return whether the code that ran raised *error* by itself, so that it ends that code only."""
    match error:
        case asyncio.CancelledError():
            return False
        case KeyboardInterrupt() | GeneratorExit():
            return _is_raised(error.__traceback__) and not _is_of_a_signal(error.__traceback__)
    return isinstance(error, Exception) or not _is_of_a_signal(error.__traceback__)


def _is_raised(trace: TracebackType | None) -> bool:
    """Return whether a `raise` began it: what Python itself throws in begins at some other instruction."""
    frames = list(_frames(trace))
    if not frames:
        return False
    last = frames[-1]
    code = last.tb_frame.f_code.co_code
    return dis.opname[code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def _is_of_a_signal(trace: TracebackType | None) -> bool:
    """Return whether a signal handler raised it: then it is for the whole program."""
    handlers = set(_handlers())
    return any(frame.tb_frame.f_code in handlers for frame in _frames(trace))


def _handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        handler = getattr(handler, "__func__", handler)
        code = getattr(handler, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
