"""A connection from a sandbox: requests are parsed strictly, and nothing in them is trusted."""

import asyncio
import re
from dataclasses import dataclass

import h11

from shoal.gateway.arrivals import HEAD_BYTES
from shoal.gateway.providers import Headers

MOST_HEADERS = 100
HEAD_SECONDS = 20.0
KEPT_SECONDS = 120.0
"""How long a connection may wait for its next request."""
BODY_SECONDS = 60.0
"""How long a body may stop."""
SEND_SECONDS = 300.0
"""How long a client may read nothing of its answer."""
BODY_BYTES = 32 * 2**20
CHUNK_BYTES = 64 * 1024
PIECES, PIECE_BYTES = 1000, 64
"""After so many pieces, those of a chunked body have this many bytes on average: each one costs time."""
# Whole lines, of printable characters: no folded line, no bare line end, no NUL, no space before a colon.
HEAD = re.compile(rb"[A-Z]{3,10} /[!-~]* HTTP/1\.[01]\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*\r\n")


class RequestRefused(Exception):
    """A request is answered with this error and never passed on."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ClientGone(Exception):
    """The client has closed the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """The head of a request; header names are in lower case."""

    method: str
    target: str
    headers: Headers

    def values(self, name: bytes) -> list[bytes]:
        """Return every value of a header."""
        return [value for known, value in self.headers if known == name]


class ClientConnection:
    """One connection, which answers its requests one at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, most_bytes: int = BODY_BYTES
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._most_bytes = most_bytes
        self._state = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._is_first = True
        self.has_answered = False

    async def read_head(self) -> RequestHead | None:
        """Return the next request; `None` at the end of the connection."""
        seconds = HEAD_SECONDS if self._is_first else KEPT_SECONDS
        self._is_first, self.has_answered = False, False
        try:
            async with asyncio.timeout(seconds):
                head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise RequestRefused(431, f"the head of a request may have {HEAD_BYTES} bytes") from None
        except asyncio.IncompleteReadError:
            return None
        if not HEAD.fullmatch(head):
            raise RequestRefused(400, "this is no request of HTTP/1.1 with a plain path")
        self._state.receive_data(head)
        event = self._state.next_event()
        if not isinstance(event, h11.Request):
            raise RequestRefused(400, "this is no request")
        request = RequestHead(
            method=event.method.decode(),
            target=event.target.decode(),
            headers=[(name, value) for name, value in event.headers],
        )
        assert_framing(request, self._most_bytes)
        return request

    async def read_body(self) -> bytes:
        """Read the whole body, up to a limit."""
        body, pieces = bytearray(), 0
        if self._state.they_are_waiting_for_100_continue:
            self._writer.write(self._state.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        while True:
            match self._state.next_event():
                case h11.NEED_DATA:
                    async with asyncio.timeout(BODY_SECONDS):
                        self._state.receive_data(await self._reader.read(CHUNK_BYTES))
                case h11.Data(data=data):
                    body += data
                    pieces += 1
                    if pieces > PIECES and len(body) < pieces * PIECE_BYTES:
                        raise RequestRefused(400, "the body of a request comes in pieces that are too small")
                    if len(body) > self._most_bytes:
                        raise RequestRefused(413, f"the body of a request may have {self._most_bytes} bytes")
                case h11.EndOfMessage():
                    return bytes(body)
                case _:
                    raise ClientGone

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the head of the answer."""
        self.has_answered = True
        await self._send(h11.Response(status_code=status, headers=headers))

    async def send(self, chunk: bytes) -> None:
        """Send a part of the answer's body, and wait for a client that reads slowly."""
        await self._send(h11.Data(data=chunk))

    async def finish(self) -> bool:
        """End the answer, and return whether another request may follow on the connection."""
        await self._send(h11.EndOfMessage())
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        if self._state.trailing_data[0]:  # sent too early: it is unclear which request it belongs to
            return False
        self._state.start_next_cycle()
        return True

    async def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole answer."""
        await self.begin(status, [*headers, (b"content-length", str(len(body)).encode())])
        if body:
            await self.send(body)
        return await self.finish()

    async def refuse(self, status: int, body: bytes) -> None:
        """Refuse a request whose body was not read; the connection is not used again."""
        if self._state.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            await self.answer(status, headers, body)

    async def wait_until_gone(self) -> None:
        """Raise `ClientGone` when the client closes the connection; most of what it sends meanwhile is left unread."""
        while chunk := await self._reader.read(CHUNK_BYTES):
            self._state.receive_data(chunk)
            if len(self._state.trailing_data[0]) > HEAD_BYTES:
                break
        raise ClientGone

    def close(self) -> None:
        """Close the connection, at once."""
        transport = self._writer.transport
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    async def _send(self, event: h11.Event) -> None:
        if data := self._state.send(event):
            self._writer.write(data)
            if self._writer.transport.get_write_buffer_size():
                async with asyncio.timeout(SEND_SECONDS):
                    await self._writer.drain()


def assert_framing(request: RequestHead, most_bytes: int) -> None:
    """Refuse a request whose end two servers could read differently, and one that would change the protocol."""
    if len(request.headers) > MOST_HEADERS:
        raise RequestRefused(431, f"a request may have {MOST_HEADERS} headers")
    lengths, codings = request.values(b"content-length"), request.values(b"transfer-encoding")
    if len(lengths) + len(codings) > 1 or any(coding.lower() != b"chunked" for coding in codings):
        raise RequestRefused(400, "a request has one Content-Length, or is chunked")
    if lengths and int(lengths[0]) > most_bytes:
        raise RequestRefused(413, f"the body of a request may have {most_bytes} bytes")
    if any(coding.strip().lower() != b"identity" for coding in request.values(b"content-encoding")):
        raise RequestRefused(415, "the gateway reads no compressed requests")
    if len(request.values(b"host")) != 1:
        raise RequestRefused(400, "a request has one Host")
    if request.values(b"upgrade"):
        raise RequestRefused(426, "the gateway speaks HTTP/1.1 only; WebSocket and other protocols are not passed on")
