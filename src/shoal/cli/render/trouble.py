"""What is said when a command cannot do what was asked."""

import os
import traceback

import typer

from shoal.cli.plain import plain
from shoal.errors import ShoalError
from shoal.pipeline.problems import BadDocument

LONGEST = 4000


def sentence(error: ShoalError) -> str:
    """Say an error of ours; those of a document stand alone, as `file:line:column:`, so that editors find them."""
    text = plain(str(error)[:LONGEST], keep="\n")
    return text if isinstance(error, BadDocument) else f"shoal: {' '.join(text.split())}"


def usage(error: typer.TyperException) -> str:
    """Say what was wrong with the words, and where to look."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "shoal"
    said = plain(error.format_message()).rstrip(".")
    return f"shoal: {said}{'' if said.endswith('?') else ';'} see `{plain(command)} --help`"


def bug(error: Exception) -> str:
    """Own up to an error that nobody foresaw; SHOAL_DEBUG=1 shows where it came from."""
    line = f"shoal: this is a bug in Shoal: {type(error).__name__}: {plain(str(error)[:LONGEST])}"
    if os.environ.get("SHOAL_DEBUG") == "1":
        return plain("".join(traceback.format_exception(error)), keep="\n") + line
    return f"{line}; SHOAL_DEBUG=1 shows where"


def stopping() -> str:
    """Answer the first Ctrl-C."""
    return "shoal: stopping: the agents are asked to end, and their work is kept; once more ends them at once"


def ended_at_once() -> str:
    """Answer the second Ctrl-C, after everything has ended."""
    return "shoal: ended at once; what was not brought in yet is brought in by the next `shoal run` or `shoal clean`"
