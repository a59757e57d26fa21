"""Errors, interrupts and waits as text."""

import errno
import os
import traceback
from collections.abc import Container, Sequence

import typer

from shoal.cli.output import escape
from shoal.errors import ShoalError
from shoal.pipeline.problems import BadDocument

LONGEST = 4000
ELSEWHERE = {  # what other tools of this field call it
    word: advice
    for words, advice in (
        ("list ls", "`shoal runs` lists the runs, and `shoal ps` the running agents"),
        ("cancel kill", "`shoal stop` stops a run or one of its sessions"),
        ("gc cleanup prune", "`shoal clean` removes what no run needs"),
        ("tail watch log", "`shoal logs -f` follows an agent, and `shoal attach` shows a run"),
        ("apply", "`shoal diff SESSION | git apply` does it"),
        ("start", "use `shoal run`"),
        ("check", "use `shoal validate`"),
    )
    for word in words.split()
}


def sentence(error: ShoalError) -> str:
    """Format one of our errors; those of a document begin with `file:line:column:`, so that editors find them."""
    if isinstance(error, BadDocument):
        return escape(str(error), keep="\n")  # it limits its own size, by whole problems
    text = escape(str(error)[:LONGEST], keep="\n")
    return f"shoal: {' '.join(text.split())}"


MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""What the machine may refuse at any time; none of it is a bug in Shoal."""


def machine_fault(error: OSError) -> str:
    """Say what the machine refused, and what to do about it."""
    where = f" at {error.filename}" if error.filename else ""
    return f"the system refused what Shoal needs: {error.strerror}{where}; fix that, then run the same command again"


def wait_line(reason: str) -> str:
    """Say what a run is waiting for, or that it continues."""
    return f"waiting: {escape(reason)}; what was done is recorded afterwards" if reason else "continuing"


def usage(error: typer.TyperException, words: Sequence[str], commands: Container[str]) -> str:
    """Say what is wrong with *words* and where to look; translate commands of other tools."""
    first = words[0] if words else ""
    if first in ELSEWHERE:
        return f"shoal: no command {first!r}; {ELSEWHERE[first]}"
    command = f"shoal {first}" if first in commands else "shoal"
    text = escape(error.format_message()).rstrip(".").replace("Value error, ", "")
    return f"shoal: {text}{'' if text.endswith('?') else ';'} see `{command} --help`"


def bug(error: Exception) -> str:
    """Report an unexpected error as a bug; SHOAL_DEBUG=1 shows the traceback."""
    line = f"shoal: this is a bug in Shoal: {type(error).__name__}: {escape(str(error)[:LONGEST])}"
    if os.environ.get("SHOAL_DEBUG") == "1":
        return escape("".join(traceback.format_exception(error)), keep="\n") + line
    return f"{line}; SHOAL_DEBUG=1 shows where"


def gathering(commits: int) -> str:
    """Explain why a run does not start yet."""
    return f"shoal: preparing the objects of {commits:,} commits for agents to read; this happens once"


def stopping() -> str:
    """Answer the first Ctrl-C."""
    return "shoal: stopping the agents and keeping their work; interrupt again to kill them at once"


def late() -> str:
    """Say that the deadline has passed."""
    return "shoal: the deadline has passed; stopping the agents and keeping their work"


def interrupt_line() -> str:
    """Answer the second Ctrl-C, after everything has ended."""
    return "shoal: killed; the next `shoal run` or `shoal clean` recovers the remaining work"
