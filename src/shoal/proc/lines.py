"""Lines out of chunks: bounded, and whole before they are decoded."""

from collections.abc import Callable


class Lines:
    """Split chunks into lines and emit each with the number of bytes cut off it."""

    def __init__(self, emit: Callable[[str, int], None], *, cap: int = 16 * 2**20) -> None:
        self._emit = emit
        self._cap = cap
        self._line = bytearray()
        self._cut = 0
        self._returns = False

    def feed(self, data: bytes) -> None:
        """Take the next chunk and emit every line that it ends."""
        first, *others = data.split(b"\n")
        self._grow(first)
        if others:
            *whole, last = others
            self._finish()
            for line in whole:
                self._tell(line)
            self._grow(last)

    def close(self) -> None:
        """Emit the unfinished last line, if there is one."""
        if self._line:
            self._finish()

    def _grow(self, piece: bytes) -> None:
        room = self._cap - len(self._line)
        self._line += piece[:room]
        self._cut += max(0, len(piece) - room)
        self._returns = piece.endswith(b"\r") if piece else self._returns

    def _finish(self) -> None:
        line, cut = self._line, self._cut
        self._line, self._cut = bytearray(), 0
        if cut:
            # the line end's own \r is no loss, and a \r before the cut is no line end
            self._emit(_text(line), cut - self._returns)
        else:
            self._tell(line)

    def _tell(self, line: bytes | bytearray) -> None:
        line = line.removesuffix(b"\r")
        self._emit(_text(line[: self._cap]), max(0, len(line) - self._cap))


def _text(line: bytes | bytearray) -> str:
    # a NUL is legal UTF-8, but terminals, SQLite text and C programs end a string at it
    return line.decode("utf-8", "replace").replace("\x00", "\ufffd")
