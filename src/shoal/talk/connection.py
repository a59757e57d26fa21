"""A connection of an agent to its tools: whole requests and whole answers, parsed as strictly as the gateway's.

Half of what a call costs the coordinator was h11, which keeps a state for each event. Here a request is one head, which
has to match the gateway's pattern, and a body of a known length.
"""

import asyncio
from http import HTTPStatus

from shoal.gateway.client_connection import (
    BODY_SECONDS,
    HEAD,
    HEAD_SECONDS,
    KEPT_SECONDS,
    SEND_SECONDS,
    RequestHead,
    RequestRefused,
    assert_framing,
)

MOST_LENGTH_DIGITS = 9


class ToolConnection:
    """One connection, which answers its requests one at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, most_bytes: int) -> None:
        self._reader = reader
        self._writer = writer
        self._most_bytes = most_bytes
        self._seconds = HEAD_SECONDS
        self._length = 0
        self._is_last = False

    async def read_head(self) -> RequestHead | None:
        """Return the next request; `None` at the end of the connection."""
        try:
            async with asyncio.timeout(self._seconds):
                head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise RequestRefused(431, "the head of a request is too long") from None
        except asyncio.IncompleteReadError:
            return None
        self._seconds = KEPT_SECONDS
        if not HEAD.fullmatch(head):
            raise RequestRefused(400, "this is no request of HTTP/1.1 with a plain path")
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        pairs = (line.split(":", 1) for line in lines)
        headers = [(name.lower().encode("latin-1"), value.strip(" \t").encode("latin-1")) for name, value in pairs]
        request = RequestHead(method=method, target=target, headers=headers)
        self._length = _read_length(request)
        assert_framing(request, self._most_bytes)
        self._is_last = version == "HTTP/1.0" or any(
            b"close" in value.lower() for value in request.values(b"connection")
        )
        return request

    async def read_body(self) -> bytes:
        """Read the whole body."""
        if not self._length:
            return b""
        async with asyncio.timeout(BODY_SECONDS):
            return await self._reader.readexactly(self._length)

    async def answer(self, status: int, body: bytes, *, is_last: bool = False) -> bool:
        """Send a whole answer, and return whether another request may follow."""
        is_last = is_last or self._is_last
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{'Connection: close' if is_last else 'Connection: keep-alive'}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        if self._writer.transport.get_write_buffer_size():
            async with asyncio.timeout(SEND_SECONDS):
                await self._writer.drain()
        return not is_last

    def close(self) -> None:
        """Close the connection, at once."""
        transport = self._writer.transport
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()


def _read_length(request: RequestHead) -> int:
    """Return the length of the body, which has to be known."""
    if request.values(b"transfer-encoding"):
        raise RequestRefused(411, "a call has a Content-Length")
    lengths = request.values(b"content-length")
    if not all(length.isdigit() and len(length) <= MOST_LENGTH_DIGITS for length in lengths):
        raise RequestRefused(400, "a Content-Length is a number")
    return int(lengths[0]) if lengths else 0
