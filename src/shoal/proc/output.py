"""Bound what is kept of a stream."""

from collections.abc import Callable


class OutputBudget:
    """Keep at most *limit* bytes of lines in all, and count the rest."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self.dropped = 0

    def admit(self, size: int) -> bool:
        """Spend *size* bytes, or count them as dropped when they no longer fit."""
        if size > self._left:
            self.dropped += size
            return False
        self._left -= size
        return True


class HeadBuffer:
    """Keep the first *limit* bytes and count the others."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.dropped = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk."""
        room = self._limit - len(self._kept)
        self._kept += chunk[:room]
        self.dropped += max(0, len(chunk) - room)

    def content(self) -> bytes:
        """Return what was kept."""
        return bytes(self._kept)


class HeadTailBuffer:
    """Keep the first and the last *each* bytes, and say between them how many are missing."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._head = HeadBuffer(each)
        self._tail = bytearray()
        self._passed = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk."""
        before = self._head.dropped
        self._head.feed(chunk)
        rest = self._head.dropped - before
        self._tail += chunk[len(chunk) - rest :]
        if len(self._tail) > 2 * self._each:  # trimmed by halves, so that each byte moves once on average
            self._trim()

    def content(self) -> bytes:
        """Return head and tail, with a line between them that counts the missing bytes."""
        self._trim()
        gap = b"\n[... %d bytes left out ...]\n" % self._passed if self._passed else b""
        return self._head.content() + gap + bytes(self._tail)

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - self._each)
        del self._tail[:surplus]
        self._passed += surplus


class LineSplitter:
    """Split chunks into lines and emit each with the number of bytes cut off it."""

    def __init__(self, emit: Callable[[str, int], None], *, cap: int = 16 * 2**20) -> None:
        self._emit = emit
        self._cap = cap
        self._line = bytearray()
        self._cut = 0
        self._returns = False

    def feed(self, data: bytes) -> None:
        """Take the next chunk and emit every line that it ends."""
        first, is_ended, others = data.partition(b"\n")
        self._grow(first)
        if is_ended:
            self._finish()
            whole, is_several, last = others.rpartition(b"\n")
            if is_several:
                self._tell_all(whole)
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

    def _tell_all(self, lines: bytes) -> None:
        for line in lines.split(b"\n"):
            self._tell(line)

    def _tell(self, line: bytes | bytearray) -> None:
        line = line.removesuffix(b"\r")
        self._emit(_text(line[: self._cap]), max(0, len(line) - self._cap))


class LineBatcher(LineSplitter):
    """Emit lines that arrive together as one text, which makes a flood of lines fifty times cheaper."""

    def _tell_all(self, lines: bytes) -> None:
        if len(lines) > self._cap:  # one of them may be too long
            super()._tell_all(lines)
        else:
            self._emit(_text((lines + b"\n").replace(b"\r\n", b"\n")[:-1]), 0)


def _text(line: bytes | bytearray) -> str:
    # a NUL is legal UTF-8, but terminals, SQLite text and C programs end a string at it
    return line.decode("utf-8", "replace").replace("\x00", "\ufffd")
