"""The console script: words in, exit code out."""

import gc
import sys
from collections.abc import Sequence

from shoal import __version__

INTERRUPTED = 130
CLOSED = 141  # what a shell shows for a program that was ended by a closed pipe
BUG = 3


def main() -> None:
    """Run the command that was typed, and leave with its exit code."""
    words = sys.argv[1:]
    if words[:1] in (["--version"], ["-V"]):
        print(f"shoal {__version__}")
        return
    code = exit_code(words)
    gc.freeze()  # who ends need not look through all that was imported for garbage
    sys.exit(code)


def exit_code(words: list[str]) -> int:
    """Run the command that *words* name, and turn every way in which it can end into a number."""
    # Imported here, for `--version` may cost no more than Python itself.
    from shoal.cli import app, output

    output.make_streams_safe()
    try:
        code = app.call_command(words)
        output.flush()
    except output.Closed:
        return CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return _print_error(error, words)
    return code


def _print_error(error: Exception, words: Sequence[str]) -> int:
    """Say on stderr what went wrong, on one line where it can be, and return the exit code for it."""
    import typer

    from shoal.cli import output
    from shoal.cli.app import COMMANDS
    from shoal.cli.render.trouble import bug, sentence, usage
    from shoal.errors import ShoalError

    cause = _first(error)
    match cause:
        case ShoalError():
            output.print_err(sentence(cause))
            return cause.exit_code
        case typer.TyperException():
            output.print_err(usage(cause, words, COMMANDS))
            return cause.exit_code
        case _:
            output.print_err(bug(cause))
            return BUG


def _first(error: Exception) -> Exception:
    """Take the first error out of the groups that structured concurrency puts it in."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
