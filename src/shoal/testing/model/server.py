"""The server: a model on loopback that follows a script while a block runs."""

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.errors import BadInput
from shoal.testing.model import anthropic, chat, gemini, responses
from shoal.testing.model.connection import MOST_HEAD, BadRequest, Connection, Received, TurnPlayer
from shoal.testing.model.conversation import Body, Conversation, WireFormat
from shoal.testing.model.recorded import Answered, Request, RequestLog, without_key, without_keys
from shoal.testing.model.scripts import Player, Script
from shoal.testing.model.turns import Fail, Usage

WIRES: dict[str, WireFormat] = {"anthropic": anthropic, "chat": chat, "responses": responses, "gemini": gemini}
ENDS = {
    "/messages": "anthropic",
    "/chat/completions": "chat",
    "/responses": "responses",
    ":generateContent": "gemini",
    ":streamGenerateContent": "gemini",
}
MODELS = {"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "shoal"}]}


def protocol(path: str) -> str | None:
    """Name the wire format of an address that gives answers."""
    plain = path.partition("?")[0]
    return next((name for end, name in ENDS.items() if plain.endswith(end)), None)


def document(method: str, path: str, length: int) -> Body | None:
    """Return what lies at an address that gives no answers."""
    plain = path.partition("?")[0]
    tokens = max(1, length // 4)
    if method == "GET":
        return MODELS if plain.endswith("/models") else None
    if plain.endswith("/messages/count_tokens"):
        return {"input_tokens": tokens}
    if plain.endswith("/input_tokens"):
        return {"object": "response.input_tokens", "input_tokens": tokens}
    return {"totalTokens": tokens} if plain.endswith(":countTokens") else None


UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading JSON of the wrong shape comes to."""


def read_request(protocol: str, received: Received) -> Request:
    """Read a request, or raise `BadRequest`: clients send what they like."""
    try:
        conversation = WIRES[protocol].read(received.path, json.loads(received.content))
        _assert_tools(conversation)
    except UNREADABLE as error:
        raise BadRequest(400, f"the request cannot be read: {error!r}"[:500]) from None
    return Request(
        protocol=protocol,
        path=without_key(received.path),
        headers=without_keys(received.headers),
        raw=received.content,
        conversation=conversation,
    )


def _assert_tools(conversation: Conversation) -> None:
    for name, schema in conversation.tools.items():
        shapes = {} if schema is None else schema.get("properties") or {}
        if not isinstance(name, str) or not all(isinstance(shape, dict) for shape in shapes.values()):
            raise TypeError(f"the schema of {name!r} is none")


class ModelServer:
    """A scripted model behind four wire formats; `async with` on your loop, or `with` on a thread of its own.

    Without a script, the prompt says what to do: `[[s:both]]`. It serves only on loopback.
    """

    def __init__(
        self, script: Script | None = None, *, port: int = 0, host: str = "127.0.0.1", log: Path | None = None
    ) -> None:
        if not _is_loopback(host):
            raise BadInput(f"the model server is for loopback only, not for {host!r}; use 127.0.0.1")
        self._place = (
            "127.0.0.1" if host == "localhost" else host,
            port,
        )  # the name has two addresses, a port only one
        self._log = log
        self._player = Player(script)
        self._recorded = RequestLog()
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._arrived = asyncio.Event()
        self._is_closed = False

    @property
    def url(self) -> str:
        """Its address, without a path."""
        host, port = self._place
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def requests(self) -> list[Request]:
        """What it was asked, oldest first."""
        return self._recorded.newest()

    @property
    def systems(self) -> list[str]:
        """The distinct system prompts that it received."""
        return list(dict.fromkeys(request.system for request in self.requests))

    @property
    def usage(self) -> Usage:
        """The tokens that all its answers reported."""
        return self._recorded.usage

    @property
    def answers(self) -> list[Answered]:
        """The requests that got a whole answer, each with the tokens that it reported."""
        return self._recorded.answers()

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._connections)

    async def received(self, count: int = 1) -> list[Request]:
        """Wait until it was asked *count* times."""
        while self._recorded.total < count:
            await self._arrived.wait()
        return self.requests

    def wait(self, count: int = 1, timeout: float = 30) -> list[Request]:
        """Wait until it was asked *count* times, from another thread."""
        return asyncio.run_coroutine_threadsafe(self.received(count), self._loop).result(timeout)

    async def __aenter__(self) -> Self:
        host, port = self._place
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, host, port, limit=MOST_HEAD, backlog=256)
        self._place = (host, self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._is_closed = True
        self._server.close()
        for connection in self._connections:
            connection.abort()
        if self._connections:
            await asyncio.wait(self._connections.values())
        await self._server.wait_closed()

    def __enter__(self) -> Self:
        # A program without a loop gets one on a thread that ends with the block.
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._alone(started)), name="model-server")
        self._thread.start()
        started.result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _alone(self, started: "concurrent.futures.Future[None]") -> None:
        self._over = asyncio.Event()
        try:
            async with self:
                started.set_result(None)
                await self._over.wait()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, task = Connection(reader, writer), asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs has a task
        if self._is_closed:  # it was accepted while the server closed
            connection.abort()
            return
        self._connections[connection] = task
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._next(connection):
                    pass
            with contextlib.suppress(ConnectionError):
                await connection.close()
        finally:
            self._connections.pop(connection)

    async def _next(self, connection: Connection) -> bool:
        """Answer one request; return whether there may be another."""
        try:
            received = await connection.receive()
        except BadRequest as error:
            await connection.send(error.status, {"error": {"message": str(error)}})
            return False
        return received is not None and await self._reply(received, connection)

    async def _reply(self, received: Received, connection: Connection) -> bool:
        named = protocol(received.path) if received.method == "POST" else None
        if received.method == "HEAD":
            await connection.acknowledge()
        elif named is not None:
            return await self._ask(named, received, connection)
        elif (found := document(received.method, received.path, len(received.content))) is not None:
            await connection.send(200, found)
        else:
            await connection.send(404, {"error": {"type": "not_found_error", "message": f"nothing at {received.path}"}})
        return True

    async def _ask(self, named: str, received: Received, connection: Connection) -> bool:
        wire = WIRES[named]
        try:
            request = read_request(named, received)
        except BadRequest as error:
            await connection.send(error.status, wire.refusal(Fail(error.status, str(error))))
            return True
        self._note(request)
        turn = self._player.turn(request)
        if self._log is not None:
            _append(self._log, {"at": request.at, "position": request.position, "turn": repr(turn)[:1000]})
        return await TurnPlayer(request, wire, connection, self._recorded.note_answer).perform(turn)

    def _note(self, request: Request) -> None:
        self._recorded.add(request)
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()
        if self._log is not None:
            line = {"at": request.at, "protocol": request.protocol, "path": request.path}
            _append(self._log, {**line, "headers": dict(request.headers), "body": request.body})


def _append(log: Path, line: Body) -> None:
    with log.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
