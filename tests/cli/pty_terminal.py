"""A terminal without a screen: pyte renders what a program draws."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyte

BOUND_SECONDS = 40.0


class PtyTerminal:
    """A program in a terminal of its own."""

    def __init__(self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str], columns: int, rows: int) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.master, self._slave = pty.openpty()
        self.resize(columns, rows)
        self.mode = termios.tcgetattr(self._slave)
        self.raw = b""
        self.process = subprocess.Popen(
            ("setsid", "-c", *words),
            cwd=cwd,
            env={**env, "TERM": "xterm-256color"},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
        )

    def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal; its program gets SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    @property
    def lines(self) -> list[str]:
        """Return the lines on the screen, without trailing blanks."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def shown(self) -> str:
        """Return the screen as one text."""
        return "\n".join(self.lines)

    @property
    def text(self) -> str:
        """Return everything that scrolled out of the screen, and the screen."""
        gone = ["".join(row[x].data for x in range(self.screen.columns)).rstrip() for row in self.screen.history.top]
        return "\n".join([*gone, *self.lines])

    def until(self, is_so: Callable[[], bool]) -> None:
        """Read until *is_so*, or fail with what is on the screen."""
        end = time.monotonic() + BOUND_SECONDS
        while not is_so():
            is_alive = self.process.poll() is None
            is_going_on = self.pump() or is_alive or is_so()
            assert is_going_on, self.text
            assert time.monotonic() < end, self.text

    def pump(self, seconds: float = 0.05) -> bool:
        """Read the program's output, and return whether there was any."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        read = os.read(self.master, 65536)
        self.raw += read
        self._stream.feed(read)
        return True

    def press(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.master, keys)

    def end(self) -> int:
        """Read until the program has ended, and return its exit code."""
        self.until(lambda: self.process.poll() is not None)
        while self.pump(0):
            pass
        return self.process.returncode

    @property
    def is_as_before(self) -> bool:
        """Return whether the terminal echoes keys as before, and shows its cursor."""
        return termios.tcgetattr(self._slave) == self.mode and not self.screen.cursor.hidden

    def close(self) -> None:
        """End what still runs, which removes its mounts, too."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(AssertionError):
                self.until(lambda: self.process.poll() is not None)
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self._slave)


@contextlib.contextmanager
def open_pty(
    *words: str, cwd: Path, env: Mapping[str, str], columns: int = 80, rows: int = 24
) -> Iterator[PtyTerminal]:
    """Run a program in a terminal."""
    terminal = PtyTerminal(words, cwd=cwd, env=env, columns=columns, rows=rows)
    try:
        yield terminal
    finally:
        terminal.close()
