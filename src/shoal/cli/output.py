"""Write to stdout and stderr, whose reader may be a terminal or a program, and may disappear at any time."""

import contextlib
import errno
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from shoal.errors import Broken

Paint = Callable[[str, str], str]
"""Colours a text, or leaves it as it is."""

COLOURS = {"good": "32", "bad": "31", "warn": "33", "dim": "2", "bold": "1", "mark": "36"}
GONE = (errno.EPIPE, errno.EIO, errno.EBADF)


class Closed(Exception):
    """Nobody reads our output any more."""


def make_streams_safe() -> None:
    """Escape characters that the terminal's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


_print_above: Callable[[str], None] | None = None
"""Prints lines while a part of the terminal is drawn in place."""


@contextlib.contextmanager
def divert(print_above: Callable[[str], None]) -> Iterator[None]:
    """Have *print_above* print the lines inside this block."""
    global _print_above
    _print_above = print_above
    try:
        yield
    finally:
        _print_above = None


def print_out(line: str = "") -> None:
    """Write a line to stdout at once; raise `Closed` when nobody reads it."""
    if _print_above is not None:
        _print_above(line)
        return
    _write(sys.stdout, f"{line}\n")


def print_err(line: str = "") -> None:
    """Write a line to stderr; ignore it if nobody reads it."""
    if _print_above is not None and _is_terminal(sys.stderr):
        _print_above(line)
        return
    try:
        _write(sys.stderr, f"{line}\n")
    except (Closed, Broken):
        return


def write_bytes(content: bytes) -> None:
    """Write bytes to stdout unchanged."""
    flush()
    try:
        sys.stdout.buffer.write(content)
    except OSError as error:
        _discard_stream(sys.stdout, error)
    flush()


def flush() -> None:
    """Flush stdout."""
    _write(sys.stdout, "")


def is_terminal(stream: TextIO | None = None) -> bool:
    """Return whether *stream*, stdout by default, is a terminal."""
    return _is_terminal(stream or sys.stdout)


def is_live() -> bool:
    """Return whether part of the terminal may be drawn in place: not in CI, nor if nobody would see it."""
    is_drawable = os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")
    return is_drawable and is_terminal() and is_foreground(sys.stdout.fileno())


def is_foreground(descriptor: int) -> bool:
    """Return whether we are the terminal's foreground job."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # it does not control our session
        return True


def paint(stream: TextIO | None = None) -> Paint:
    """Return how to colour text for *stream* (stdout by default); only terminals get colours."""
    wanted = _is_terminal(stream or sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return _colour if wanted else lambda text, colour: text


def _colour(text: str, colour: str) -> str:
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed before we started: `shoal status >&-`
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        _discard_stream(stream, error)


def _discard_stream(stream: TextIO, error: OSError) -> None:
    """Keep Python from writing the same bytes again at exit, and raise what happened."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    if error.errno in GONE:
        raise Closed from error
    raise Broken(f"the output could not be written: {error.strerror}") from error


# Letters and marks by category, but invisible: fillers, joiners and variation selectors.
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
FIRST_BYTE, LAST_BYTE = 0xDC80, 0xDCFF


def escape(text: str, *, keep: str = "") -> str:
    r"""Escape every character not visible as itself, as `\xNN`, `\uNNNN` or `\UNNNNNNNN`; those in *keep* stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in keep or _is_visible(char) else _escape(ord(char)) for char in text)


def flat(text: str) -> str:
    """Put a text of several lines on one line, escaped."""
    return escape(" ".join(text.split()))


def _is_visible(char: str) -> bool:
    return char.isprintable() and INVISIBLE.match(char) is None


def _escape(code: int) -> str:
    if FIRST_BYTE <= code <= LAST_BYTE:
        code -= 0xDC00  # a byte that is not text, carried through a string by `surrogateescape`
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def program() -> str:
    """Return `shoal` if the shell finds it, else the path by which it was started."""
    started = Path(sys.argv[0])
    found = shutil.which("shoal")
    if found is not None or not started.is_file():
        return "shoal"
    return shlex.quote(str(started.absolute()))
