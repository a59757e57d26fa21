"""The console script: arguments in, exit code out."""

import contextlib
import gc
import sys
from collections.abc import Sequence

from shoal import __version__
from shoal.errors import ExitCode

SELDOM = 50_000
"""After how many more objects garbage is collected; at 700, that takes a tenth of the time of many short sessions."""


def main() -> None:
    """Run the command and exit with its exit code."""
    words = sys.argv[1:]
    if words[:1] in (["--version"], ["-V"]):
        print(f"shoal {__version__}")
        return
    if words[:2] == ["completion", "names"]:
        _print_names(words[2:])
        return
    gc.disable()  # until the command is imported: nothing of that is garbage
    code = exit_code(words)
    gc.freeze()  # exit without collecting what was imported
    sys.exit(code)


def _print_names(kinds: Sequence[str]) -> None:
    """Print names for shell completion, without importing what commands need."""
    from pathlib import Path

    from shoal.store.completion_names import list_names

    names = [name for kind in kinds for name in list_names(Path.cwd(), kind)]
    with contextlib.suppress(BrokenPipeError):
        print("\n".join(names), flush=True)


def exit_code(words: list[str]) -> int:
    """Run the command in *words* and return its exit code, whatever happens."""
    # Imported here, so that `--version` costs no more than Python itself.
    from shoal.cli import app, output

    output.make_streams_safe()
    try:
        code = app.call_command(words)
        output.flush()
    except output.Closed:
        return ExitCode.OUTPUT_CLOSED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        return _print_error(error, words)
    return code


def _print_error(error: Exception, words: Sequence[str]) -> int:
    """Print *error* to stderr, on one line if possible, and return its exit code."""
    import typer

    from shoal.cli import output
    from shoal.cli.app import COMMANDS
    from shoal.cli.render.messages import MACHINE, bug, machine_fault, sentence, usage
    from shoal.errors import Broken, ShoalError

    cause = _first(error)
    match cause:
        case ShoalError():
            output.print_err(sentence(cause))
            return cause.exit_code
        case typer.TyperException():
            output.print_err(usage(cause, words, COMMANDS))
            return cause.exit_code
        case OSError(errno=code) if code in MACHINE:
            output.print_err(sentence(Broken(machine_fault(cause))))
            return ExitCode.BROKEN
        case _:
            output.print_err(bug(cause))
            return ExitCode.BROKEN


def _first(error: Exception) -> Exception:
    """Unwrap the first error from the groups of structured concurrency."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
