"""A model server on loopback that speaks Anthropic's and OpenAI's wire formats; the prompt carries the script.

`[[say WORDS]]` answers, `[[call TOOL {"json": 1}]]` asks for a tool and answers when it has the result, `[[fail 429]]`
refuses always and `[[once 429]]` the first time, `[[cut]]` breaks the answer off, `[[hang]]` never answers.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

Body = dict[str, Any]
SCRIPT = re.compile(r"\[\[(\w+) ?(.*?)\]\]", re.DOTALL)
KINDS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}


@dataclass
class FakeModel:
    """A running server; *asked* holds every request's body."""

    url: str = ""
    asked: list[Body] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    refused: set[str] = field(default_factory=set)
    client: httpx2.AsyncClient = field(default_factory=httpx2.AsyncClient)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                path, body = await _request(reader)
                self.asked.append(body)
                if not await self._answer(_Speech(path, body, writer), body):
                    break
        writer.close()

    async def _answer(self, speech: "_Speech", body: Body) -> bool:
        verb, argument, is_returned = _script(body)
        match verb:
            case "hang":
                self.hanging.set()
                await asyncio.sleep(3600)
            case "fail":
                await speech.refuse(int(argument))
            case "once" if argument not in self.refused:
                self.refused.add(argument)
                await speech.refuse(int(argument))
            case "cut":
                await speech.cut()
                return False
            case "call" if not is_returned:
                tool, _, arguments = argument.partition(" ")
                await speech.say("", (tool, arguments))
            case "say":
                await speech.say(argument)
            case _:
                await speech.say("done")
        return True


@contextlib.asynccontextmanager
async def fake_model() -> AsyncIterator[FakeModel]:
    """Serve while the block runs."""
    model = FakeModel()
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0)
    model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield model
    finally:
        server.close()
        await model.client.aclose()
        for writer in model.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def _request(reader: asyncio.StreamReader) -> tuple[str, Body]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"(?i)content-length: (\d+)", head)
    return head.split()[1], json.loads(await reader.readexactly(int(length[1]) if length else 0) or b"{}")


def _script(body: Body) -> tuple[str, str, bool]:
    """Find the script in the newest prompt, and whether a tool's result came after it."""
    verb, argument, is_returned = "", "", False
    for message in body["messages"]:
        if (
            found := SCRIPT.findall(json.dumps(message["content"]).replace('\\"', '"'))
            if message["role"] == "user"
            else []
        ):
            (verb, argument), is_returned = found[-1], False
        elif message["role"] == "tool" or "tool_result" in json.dumps(message["content"]):
            is_returned = True
    return verb, argument, is_returned


class _Speech:
    def __init__(self, path: str, body: Body, writer: asyncio.StreamWriter) -> None:
        self._is_anthropic = path.partition("?")[0].endswith("/messages")
        self._is_stream = bool(body.get("stream"))
        self._model = body["model"]
        self._writer = writer

    async def refuse(self, status: int) -> None:
        error = {"type": KINDS[status], "code": KINDS[status], "message": "the fake model refuses"}
        await self._send(status, {"type": "error", "error": error}, "retry-after-ms: 20\r\n")

    async def cut(self) -> None:
        await self._start()
        first, *_ = self._events("never said", None)
        self._chunk(first)
        await self._writer.drain()
        self._writer.close()

    async def say(self, text: str, call: tuple[str, str] | None = None) -> None:
        if not self._is_stream:
            await self._send(200, self._whole(text, call))
            return
        await self._start()
        for event in self._events(text, call):
            self._chunk(event)
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _start(self) -> None:
        kind = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._writer.write(b"HTTP/1.1 200 OK\r\n" + kind)

    def _chunk(self, event: Body | str) -> None:
        name = f"event: {event['type']}\n" if isinstance(event, dict) and self._is_anthropic else ""
        data = f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def _send(self, status: int, body: Body, more: str = "") -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}content-length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        await self._writer.drain()

    def _whole(self, text: str, call: tuple[str, str] | None) -> Body:
        if self._is_anthropic:
            blocks = [{"type": "text", "text": text}] if text else []
            used = (
                [{"type": "tool_use", "id": "toolu_1", "name": call[0], "input": json.loads(call[1])}] if call else []
            )
            return {**self._message(), "content": [*blocks, *used], "stop_reason": "tool_use" if call else "end_turn"}
        message: Body = {"role": "assistant", "content": text}
        if call:
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": _function(call)}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
        return {**self._completion("chat.completion"), "choices": [choice], "usage": _usage()}

    def _message(self) -> Body:
        usage = {"input_tokens": 10, "output_tokens": 5}
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "usage": usage,
        }

    def _completion(self, kind: str) -> Body:
        return {"id": "chatcmpl-1", "object": kind, "created": 0, "model": self._model}

    def _events(self, text: str, call: tuple[str, str] | None) -> Iterator[Body | str]:
        yield from self._anthropic(text, call) if self._is_anthropic else self._openai(text, call)

    def _anthropic(self, text: str, call: tuple[str, str] | None) -> Iterator[Body]:
        start: Body = {"type": "text", "text": ""}
        deltas: list[Body] = [{"type": "text_delta", "text": word} for word in re.findall(r"\S+\s*", text)]
        if call:
            start = {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": call[1]}]
        yield {"type": "message_start", "message": self._message()}
        yield {"type": "content_block_start", "index": 0, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 5}}
        yield {"type": "message_stop"}

    def _openai(self, text: str, call: tuple[str, str] | None) -> Iterator[Body | str]:
        deltas: list[Body] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": word} for word in re.findall(r"\S+\s*", text)]
        if call:
            deltas += [{"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": _function(call)}]}]
        for delta in deltas:
            yield self._part({"index": 0, "delta": delta, "finish_reason": None})
        yield self._part({"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"})
        yield {**self._completion("chat.completion.chunk"), "choices": [], "usage": _usage()}
        yield "[DONE]"

    def _part(self, choice: Body) -> Body:
        return {**self._completion("chat.completion.chunk"), "choices": [choice]}


def _function(call: tuple[str, str]) -> Body:
    return {"name": call[0], "arguments": call[1]}


def _usage() -> Body:
    return {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
