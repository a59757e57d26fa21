"""The person's terminal: draws lines in place below those that stay, and reads single keys.

A `kill -9` can leave nothing hidden or switched off except the echo of keys, which shells restore themselves.
"""

import asyncio
import contextlib
import math
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence

from shoal.cli import output
from shoal.cli.live.frame import Size
from shoal.cli.live.text_width import width, wrap

KEY_BYTES = 1024
FLUSH_SECONDS = 2.0
MAX_PENDING_BYTES = 2**20
MAX_SIDE = 1000
FALLBACK = Size(80, 24)
BEGIN, END = "\x1b[?2026h\x1b[?7l", "\x1b[?7h\x1b[?2026l"
"""Shown at once where the terminal can do that, and cut at its edge where it counts cells otherwise."""
KEYS = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b": "escape",
    b"\x1b[D": "escape",
    b"\x1bOD": "escape",
}


class Terminal:
    """Draws on the terminal of stdout without blocking, and reads keys from the terminal of stdin."""

    def __init__(self, on_key: Callable[[str], None], on_resize: Callable[[], None]) -> None:
        self._on_key = on_key
        self._on_resize = on_resize
        self._output = _reopen(sys.stdout.fileno())
        self._keys = sys.stdin.fileno() if output.is_terminal(sys.stdin) else None
        self._mode: list[object] | None = None
        self._drawn: list[int] = []
        self._width = 0
        self._pending = bytearray()
        self.is_gone = False

    @property
    def has_keys(self) -> bool:
        """Return whether somebody can press keys."""
        return self._keys is not None

    @property
    def size(self) -> Size:
        """Return its size."""
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(self._output)
            if found.columns and found.lines:
                return Size(min(found.columns, MAX_SIDE), min(found.lines, MAX_SIDE))
        return FALLBACK

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Take over the terminal, and restore it on exit."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._take_keys()
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGTSTP)
            self.draw([])
            self._flush()
            self._give_back()
            os.close(self._output)

    def draw(self, lines: Sequence[str], above: Sequence[str] = ()) -> None:
        """Replace what is drawn by *lines*, after the lines *above* that stay; skipped while the terminal is busy."""
        if self.is_gone or (not self._pump() and not above):
            return
        if not output.is_foreground(self._output):
            self._write("".join(f"{line}\r\n" for line in above))
            return
        size = self.size
        text = [BEGIN, _rise(self._rows(size)), "\r\x1b[J" if above or size.width != self._width else "\r"]
        text += [f"{row}\r\n" for line in above for row in wrap(line, size.width, "          ")]
        text += [f"\x1b[2K{line}\r\n" for line in lines]
        self._write("".join([*text, "\x1b[J", END]))
        self._drawn, self._width = [width(line) for line in lines], size.width

    def _rows(self, size: Size) -> int:
        """Count the rows that the drawing takes now: a terminal that became narrower has wrapped it."""
        rows = sum(max(1, math.ceil(cells / size.width)) for cells in self._drawn)
        return min(rows, size.height - 1)

    def _write(self, text: str) -> None:
        if len(self._pending) < MAX_PENDING_BYTES:
            self._pending += text.encode(errors="backslashreplace")
        self._pump()

    def _pump(self) -> bool:
        """Write what the terminal accepts without blocking, and return whether that was all."""
        while self._pending:
            try:
                written = os.write(self._output, self._pending)
            except BlockingIOError:
                return False
            except OSError:  # it was closed
                self.is_gone = True
                self._pending.clear()
                return True
            del self._pending[:written]
        return True

    def _flush(self) -> None:
        """Write the rest, with a time limit: the user may have stopped the terminal with Ctrl-S."""
        if not self._pump():
            with contextlib.suppress(OSError):
                select.select([], [self._output], [], FLUSH_SECONDS)
            self._pump()

    def _take_keys(self) -> None:
        if self._keys is None or not output.is_foreground(self._keys):
            return
        with contextlib.suppress(termios.error):
            self._mode = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)
            asyncio.get_running_loop().add_reader(self._keys, self._read_keys)

    def _give_back(self) -> None:
        if self._keys is None or self._mode is None:
            return
        asyncio.get_running_loop().remove_reader(self._keys)
        if output.is_foreground(self._keys):  # otherwise it belongs to another program
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._mode)  # type: ignore[arg-type]
        self._mode = None

    def _suspend(self) -> None:
        """Suspend as Ctrl-Z asks, with the terminal restored; agents continue."""
        self.draw([])
        self._flush()
        self._give_back()
        signal.raise_signal(signal.SIGSTOP)
        self._take_keys()
        self._on_resize()

    def _read_keys(self) -> None:
        if self._keys is None:
            return
        try:
            read = os.read(self._keys, KEY_BYTES)
        except OSError:
            read = b""
        if not read:
            asyncio.get_running_loop().remove_reader(self._keys)
        for key in split_keys(read):
            self._on_key(key)


def split_keys(read: bytes) -> Iterator[str]:
    """Name the pressed keys: letters as themselves, those of `KEYS` by name."""
    while read:
        end = 1
        if read[:2] in (b"\x1b[", b"\x1bO"):
            end = next((at + 1 for at in range(2, len(read)) if 0x40 <= read[at] <= 0x7E), len(read))
        key, read = read[:end], read[end:]
        if name := KEYS.get(key, key.decode("ascii", "ignore") if len(key) == 1 else ""):
            yield name


def _rise(rows: int) -> str:
    return f"\x1b[{rows}A" if rows else ""


def _reopen(descriptor: int) -> int:
    """Open the terminal anew, so that only our own writes are non-blocking."""
    try:
        return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return os.dup(descriptor)
