"""A client's connection: as much of HTTP as a model needs."""

import asyncio
import http
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from shoal.testing.model.conversation import Body, Event, ModelAnswer, WireFormat, fresh
from shoal.testing.model.gemini import SIDE, wants_json
from shoal.testing.model.recorded import Request
from shoal.testing.model.tools import call
from shoal.testing.model.turns import Cut, Delay, Fail, Garble, Hang, Say, Spoken, Turn, Usage, Use

MOST_HEAD = 256 * 1024
MOST_BODY = 64 * 1024 * 1024
NO_HEADERS: Mapping[str, str] = {}


class BadRequest(Exception):
    """The input is not HTTP that we support; the connection cannot be used any more."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes


class Connection:
    """Reads requests and writes answers, and can break off in between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> Received | None:
        """Return the next request, or `None` when the client has gone."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError:
            raise BadRequest(431, "the head is too long") from None
        start, *lines = head.decode("latin-1").split("\r\n")
        parts = start.split(" ")
        if len(parts) != 3:
            raise BadRequest(400, "that is not HTTP")
        pairs = (line.partition(":") for line in lines if ":" in line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return Received(parts[0], parts[1], headers, await self._content(headers))

    async def send(self, status: int, body: Body, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Answer with a document."""
        content = json.dumps(body).encode()
        self._head(status, {"content-type": "application/json", "content-length": str(len(content)), **headers})
        self._writer.write(content)
        await self._writer.drain()

    async def acknowledge(self) -> None:
        """Answer with nothing."""
        self._head(200, {"content-length": "0"})
        await self._writer.drain()

    async def start_stream(self) -> None:
        """Begin an answer that comes in chunks."""
        kind = "text/event-stream; charset=utf-8"
        self._head(200, {"content-type": kind, "cache-control": "no-cache", "transfer-encoding": "chunked"})
        await self._writer.drain()

    async def chunk(self, content: bytes) -> None:
        """Send a piece of it; an empty one ends it."""
        self._writer.write(b"%x\r\n%s\r\n" % (len(content), content))
        await self._writer.drain()

    async def send_part(self, body: Body, length: int) -> None:
        """Promise a document and send only the first *length* bytes of it."""
        content = json.dumps(body).encode()
        self._head(200, {"content-type": "application/json", "content-length": str(len(content) + 1)})
        self._writer.write(content[:length])
        await self._writer.drain()

    async def pause(self, seconds: float | None) -> None:
        """Wait, forever if it is `None`; the client leaving or the server closing ends the wait."""
        try:
            async with asyncio.timeout(seconds):
                await self._reader.read(1)
        except TimeoutError:
            return
        raise ConnectionResetError("the client did not wait")

    async def close(self) -> None:
        """End it, after what was sent."""
        self._writer.close()
        await self._writer.wait_closed()

    def abort(self) -> None:
        """End it at once."""
        self._writer.transport.abort()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        phrase = http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else "Refused"
        lines = [f"{name}: {value}" for name, value in {"request-id": fresh("req_"), **headers}.items()]
        self._writer.write("\r\n".join([f"HTTP/1.1 {status} {phrase}", *lines, "", ""]).encode())

    async def _content(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            if headers.get("transfer-encoding", "").lower() == "chunked":
                content = await self._read_chunked()
            else:
                content = await self._exactly(int(headers.get("content-length") or 0))
        except ValueError:
            raise BadRequest(400, "its length cannot be read") from None
        return _decompress(content, headers.get("content-encoding", "identity"))

    async def _exactly(self, length: int) -> bytes:
        if not 0 <= length <= MOST_BODY:
            raise BadRequest(413, "it is too long")
        return await self._reader.readexactly(length)

    async def _read_chunked(self) -> bytes:
        content = b""
        while length := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
            content += await self._exactly(length)
            await self._reader.readuntil(b"\r\n")
            if len(content) > MOST_BODY:
                raise BadRequest(413, "it is too long")
        await self._reader.readuntil(b"\r\n")
        return content


def _decompress(content: bytes, encoding: str) -> bytes:
    if encoding == "identity":
        return content
    if encoding not in ("gzip", "deflate"):
        raise BadRequest(415, f"content-encoding {encoding} is not read")
    unpacking = zlib.decompressobj(wbits=47)  # gzip or zlib, detected from the header
    try:
        unpacked = unpacking.decompress(content, MOST_BODY)
    except zlib.error:
        raise BadRequest(400, "it cannot be unpacked") from None
    if unpacking.unconsumed_tail:
        raise BadRequest(413, "it is too long")
    return unpacked


CHARACTERS_OF_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class TurnPlayer:
    """Plays a turn for a request; *answered* receives the answer's report before its end is sent."""

    request: Request
    wire: WireFormat
    connection: Connection
    answered: Callable[[Request, Usage], None]

    async def perform(self, turn: Turn, between: float = 0) -> bool:
        """Perform *turn*; return whether the connection may continue."""
        match turn:
            case Say() | Use() | tuple():
                await self._answer(answer(turn, self.request), between)
            case Fail() if turn.is_streamed and self.request.conversation.is_stream:
                await self._stream(event.encode() for event in self.wire.failure(turn))
            case Fail():
                await self.connection.send(turn.status, self.wire.refusal(turn), _retry(turn))
            case Hang():
                await self.connection.pause(None)
            case Garble():
                await self._stream([b"data: {not json\n\n"])
            case Cut():
                await self._cut_stream(turn, between)
                return False
            case Delay():
                await self.connection.pause(turn.seconds)
                return await self.perform(turn.then, turn.between)
            case _:
                assert_never(turn)
        return True

    async def _answer(self, reply: ModelAnswer, between: float) -> None:
        if not self.request.conversation.is_stream:
            self.answered(self.request, reply.usage)
            await self.connection.send(200, self.wire.whole(reply))
            return
        *events, last = self.wire.events(reply)
        await self.connection.start_stream()
        for event in events:
            await self._send(event, between)
        self.answered(self.request, reply.usage)
        await self.connection.chunk(last.encode())
        await self.connection.chunk(b"")

    async def _send(self, event: Event, between: float) -> None:
        await self.connection.chunk(event.encode())
        if between:
            await self.connection.pause(between)

    async def _cut_stream(self, cut: Cut, between: float) -> None:
        reply = answer(cut.of, self.request)
        if not self.request.conversation.is_stream:
            await self.connection.send_part(self.wire.whole(reply), 10 if cut.after_bytes is None else cut.after_bytes)
            return
        await self.connection.start_stream()
        chunks = [event.encode() for event in self.wire.events(reply)]
        if cut.after_bytes is not None:
            await self.connection.chunk(b"".join(chunks)[: cut.after_bytes] or b"\n")
            return
        for chunk in chunks[: cut.after_chunks]:
            await self.connection.chunk(chunk)
            if between:
                await self.connection.pause(between)

    async def _stream(self, chunks: Iterable[bytes]) -> None:
        await self.connection.start_stream()
        for chunk in (*chunks, b""):
            await self.connection.chunk(chunk)


def answer(turn: Spoken, request: Request) -> ModelAnswer:
    """Return what *turn* is to the client that asks."""
    parts = turn if isinstance(turn, tuple) else (turn,)
    text = "\n".join(filter(None, (part.text if isinstance(part, Say) else part.say for part in parts)))
    calls = tuple(call(part, request.tools) for part in parts if isinstance(part, Use))
    if request.protocol == "gemini" and not calls and wants_json(request.body):
        text = json.dumps(SIDE)
    reported = [part.usage for part in parts if part.usage is not None]
    length = len(text) + sum(len(made.text) for made in calls)
    guess = Usage(_tokens(len(request.raw)), _tokens(length))
    return ModelAnswer(model=request.model, text=text, calls=calls, usage=sum(reported, Usage()) if reported else guess)


def _tokens(characters: int) -> int:
    return max(1, characters // CHARACTERS_OF_A_TOKEN)


def _retry(fail: Fail) -> dict[str, str]:
    if fail.retry_after is None:
        return {}
    return {"retry-after": f"{fail.retry_after:g}", "retry-after-ms": f"{fail.retry_after * 1000:g}"}
