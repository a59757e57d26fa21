"""The server's record of requests and answers, as tests read it."""

import time
from typing import Any

import httpx2
import pytest

from shoal.testing.model import Conversation, ModelServer, Request, Say, Usage
from shoal.testing.model.recorded import RequestLog
from tests.testing.asking import asking

PROMPT = "Be short.\nYou are one of three."
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("anthropic", "/v1/messages?beta=true", {"system": PROMPT, "messages": [{"role": "user", "content": "go"}]}),
    (
        "anthropic",
        "/v1/messages",
        {
            "system": [{"type": "text", "text": line} for line in PROMPT.splitlines()],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "go"}]}],
        },
    ),
    (
        "chat",
        "/chat/completions",
        {
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "developer", "content": [{"type": "text", "text": "You are one of three."}]},
                {"role": "user", "content": "go"},
            ]
        },
    ),
    ("responses", "/responses", {"instructions": PROMPT, "input": "go"}),
    (
        "responses",
        "/v1/responses",
        {
            "instructions": "Be short.",
            "input": [
                {"role": "developer", "content": [{"type": "input_text", "text": "You are one of three."}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
            ],
        },
    ),
    (
        "gemini",
        "/v1beta/models/m:generateContent",
        {
            "systemInstruction": {"parts": [{"text": line} for line in PROMPT.splitlines()]},
            "contents": [{"role": "user", "parts": [{"text": "go"}]}],
        },
    ),
]


@pytest.mark.parametrize(("protocol", "path", "body"), ASKED)
async def test_the_whole_system_prompt_is_recorded(protocol: str, path: str, body: dict[str, Any]) -> None:
    before = time.time()
    async with ModelServer() as server, httpx2.AsyncClient(base_url=server.url) as client:
        await client.post(path, json={"model": "m", **body})

    (request,) = server.requests
    assert (request.protocol, request.path, request.model) == (protocol, path, "m")
    assert (request.system, request.user) == (PROMPT, "go")
    assert request.body == {"model": "m", **body}
    assert before <= request.at <= time.time()
    assert server.systems == [PROMPT]


async def test_keys_are_not_recorded() -> None:
    secrets = {"authorization": "Bearer s3cret", "x-api-key": "s3cret", "x-goog-api-key": "s3cret", "cookie": "s3cret"}
    async with ModelServer() as server, httpx2.AsyncClient(base_url=server.url) as client:
        path = "/v1beta/models/m:streamGenerateContent?alt=sse&key=s3cret&x=1"
        await client.post(path, json={}, headers={**secrets, "x-app": "cli"})

    (request,) = server.requests
    assert "s3cret" not in repr(request)
    assert request.headers["x-app"] == "cli"
    assert request.path == "/v1beta/models/m:streamGenerateContent?alt=sse&key=…&x=1"


async def test_the_usage_is_what_was_sent() -> None:
    script = [Say("a", Usage(10, 2)), Say("b"), Say("c", Usage(5, 1, cached=3))]
    async with ModelServer(script) as server, asking(server) as client:
        for text in ("x", "y", "z"):
            client.messages.append({"role": "user", "content": text})
            await client.step()
        told = (await client.post()).json()["usage"]

    sent = [one.usage for one in server.answers]
    assert (sent[0], sent[2]) == (Usage(10, 2), Usage(5, 1, cached=3))
    assert sent[1].input == len(server.requests[1].raw) // 4
    assert (told["prompt_tokens"], told["completion_tokens"]) == (sent[3].input, sent[3].output)
    assert server.usage == Usage(sum(one.input for one in sent), sum(one.output for one in sent), 3)


def _request(length: int) -> Request:
    asked = Conversation(model="m", system="", messages=(), tools={}, is_stream=False)
    return Request(protocol="chat", path="/", headers={}, raw=b"x" * length, conversation=asked)


def test_what_is_kept_is_bounded() -> None:
    few, small = RequestLog(most_requests=3), RequestLog(most_bytes=100)
    for length in (10, 20, 30, 40, 50):
        for recorded in (few, small):
            request = _request(length)
            recorded.add(request)
            recorded.note_answer(request, Usage(1, 1))

    assert [len(one.raw) for one in few.newest()] == [30, 40, 50]
    assert [len(one.raw) for one in small.newest()] == [40, 50]
    assert [len(one.request.raw) for one in small.answers()] == [40, 50]
    assert small.total == small.usage.input == 5
