"""What of a stream is kept when there may be too much of it."""


class Budget:
    """Decide whether a line is still kept: at most *limit* bytes in all, the rest counted."""

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


class Head:
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
        """Give what was kept."""
        return bytes(self._kept)


class Ends:
    """Keep the first and the last *each* bytes, and say between them how many are missing."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._head = Head(each)
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
        """Give head and tail, with a line between them where bytes are missing."""
        self._trim()
        gap = b"\n[... %d bytes left out ...]\n" % self._passed if self._passed else b""
        return self._head.content() + gap + bytes(self._tail)

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - self._each)
        del self._tail[:surplus]
        self._passed += surplus
