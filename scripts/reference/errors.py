"""docs/errors.md: every exit code and every error that a program may get, from their classes."""

import inspect
from collections.abc import Iterator

from scripts.reference.source import sentence, table
from shoal import errors
from shoal.errors import ExitCode, ShoalError

INTRODUCTION = """\
# Every error and exit code

Written by `python -m scripts.reference` from `src/shoal/errors.py`: change that, not this page.

An agent that fails is a result with a status, never an exception. An exception means a mistake in the input, something
that this host does not have, a machine that does not work, or a bug. `shoal` prints it in one line and exits with its
code; `SHOAL_DEBUG=1` shows where it came from.

## Exit codes
"""
MEANINGS = {
    ExitCode.SUCCESS: "success; an agent that changed nothing succeeded too",
    ExitCode.FAILED: "an agent failed, timed out or was cancelled; its work is kept",
    ExitCode.BAD_INPUT: "the input is wrong; nothing was changed",
    ExitCode.BROKEN: "a bug in Shoal, or a problem of the machine",
    ExitCode.NEEDS_A_PERSON: "a merge needs you: a conflict, held work, or a delivery that waits for approval",
    ExitCode.UNAVAILABLE: "something that was asked for is not available on this host",
    ExitCode.TIMED_OUT: "the run passed its deadline, or `shoal wait` its timeout",
    ExitCode.INTERRUPTED: "interrupted; `shoal resume` continues",
    ExitCode.OUTPUT_CLOSED: "stdout was closed early; a run continues",
}


def page() -> str:
    """Make the whole page."""
    codes = ((str(code.value), f"`{code.name}`", MEANINGS[code]) for code in ExitCode)
    return "\n".join([INTRODUCTION, *table(("code", "name", "meaning"), codes), *_classes()])


def _classes() -> Iterator[str]:
    yield "## Errors\n"
    yield "All are in `shoal.errors`, and those of the [library](python.md) in `shoal` too.\n"
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ShoalError)]
    rows = ((f"`{kind.__name__}`", _parent(kind), str(int(kind.exit_code)), sentence(kind.__doc__)) for kind in kinds)
    yield from table(("error", "is a", "exit code", "meaning"), rows)


def _parent(kind: type[ShoalError]) -> str:
    return "" if kind is ShoalError else f"`{kind.__mro__[1].__name__}`"
