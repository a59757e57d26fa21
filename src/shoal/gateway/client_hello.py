"""Find the server that a TLS client names in its first message."""

from dataclasses import dataclass

HANDSHAKE = 22
CLIENT_HELLO = 1
SERVER_NAME = 0
MOST_RECORD = 2**14
MOST_HELLO = 2**16
MOST_RECORDS = 32
"""For one hello: each is read again whenever more has come."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The server that a client names, if any, or what is wrong with its message."""

    server_name: str | None = None
    problem: str | None = None


BROKEN = Hello(problem="got a TLS hello that is malformed")


class _Incomplete(Exception):
    pass


class _Fields:
    """Reads fields from the front of a byte string."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._content)

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._content):
            raise _Incomplete
        start, self._at = self._at, end
        return self._content[start:end]

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big")

    def block(self, length: int) -> bytes:
        """Take a field that is preceded by its length."""
        return self.take(self.number(length))


def is_tls(start: bytes) -> bool:
    """Return whether a client speaks TLS, judging by its first byte."""
    return start[:1] == bytes([HANDSHAKE])


def read(start: bytes) -> Hello | None:
    """Return the server that a client's first bytes name, or `None` if more bytes are needed."""
    message = bytearray()
    records = _Fields(start)
    try:
        for _ in range(MOST_RECORDS):
            kind, _version, content = records.number(1), records.take(2), records.block(2)
            message += content
            if kind != HANDSHAKE or not content or len(content) > MOST_RECORD or message[0] != CLIENT_HELLO:
                return BROKEN
            length = int.from_bytes(message[1:4], "big")
            if len(message) >= 4 and (len(message) >= 4 + length or length > MOST_HELLO):
                return _read_message(bytes(message[4 : 4 + length]), length)
    except _Incomplete:
        return BROKEN if len(start) > 2 * MOST_HELLO else None
    return BROKEN


def _read_message(content: bytes, length: int) -> Hello:
    if len(content) < length:
        return BROKEN
    fields = _Fields(content)
    try:
        fields.take(2 + 32)  # the version and the random bytes
        fields.block(1)  # the session
        fields.block(2)  # the ciphers
        fields.block(1)  # the compression
        extensions = _Fields(b"" if fields.is_over else fields.block(2))
        names: list[bytes] = []
        while not extensions.is_over:
            kind, extension = extensions.number(2), extensions.block(2)
            if kind == SERVER_NAME:
                names += _server_names(extension)
        if not fields.is_over or len(names) > 1:
            return BROKEN
        return Hello(names[0].decode("ascii").lower() if names else None)
    except (_Incomplete, UnicodeDecodeError):
        return BROKEN


def _server_names(extension: bytes) -> list[bytes]:
    fields = _Fields(extension)
    listed = _Fields(fields.block(2))
    names: list[bytes] = []
    while not listed.is_over:
        listed.take(1)  # a host name, the only kind that is defined
        names.append(listed.block(2))
    if not names or not fields.is_over:
        raise _Incomplete
    return names
