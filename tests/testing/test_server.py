"""The server itself: where and how long it serves, and how it treats strange clients."""

import asyncio
import contextlib
import gzip
import json
import socket
import threading
import urllib.request
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.testing.model import Hang, ModelServer, Say, Use
from shoal.testing.model.connection import BadRequest, Received, answer
from shoal.testing.model.scripts import Player
from shoal.testing.model.server import WIRES, protocol, read_request
from shoal.testing.model.tools import call

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def ask(server: ModelServer) -> str:
    made = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(BODY).encode())
    with urllib.request.urlopen(made, timeout=20) as response:
        text: str = json.load(response)["choices"][0]["message"]["content"]
        return text


def test_a_program_without_a_loop_has_it_on_a_thread() -> None:
    with ModelServer([Say("hello")]) as server:
        assert ask(server) == "hello"
        assert [request.user for request in server.wait()] == ["hi"]

    assert "model-server" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(OSError):
        ask(server)


def test_closing_ends_a_request_that_hangs() -> None:
    with contextlib.ExitStack() as stack:
        with ModelServer([Hang()]) as server:
            place = ("127.0.0.1", urlsplit(server.url).port or 0)
            client = stack.enter_context(socket.create_connection(place, timeout=20))
            client.sendall(b"POST /v1/responses HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
            server.wait()

        assert client.recv(100) == b""


def test_a_port_that_is_taken_is_an_error_at_the_start() -> None:
    with ModelServer() as server, pytest.raises(OSError), ModelServer(port=urlsplit(server.url).port or 0):
        pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_only_loopback_is_served(host: str) -> None:
    with pytest.raises(BadInput, match="loopback"):
        ModelServer(host=host)


async def test_the_addresses_that_clients_look_at_first_are_there() -> None:
    async with ModelServer() as server, httpx2.AsyncClient(base_url=server.url) as client:
        assert (await client.head("/")).status_code == 200
        assert (await client.get("/v1/models")).json()["data"][0]["object"] == "model"
        assert (await client.post("/v1/messages/count_tokens", json=BODY)).json()["input_tokens"] > 1
        assert (await client.post("/v1/responses/input_tokens", json=BODY)).json()["input_tokens"] > 1
        assert (await client.post("/v1beta/models/m:countTokens", json=BODY)).json()["totalTokens"] > 1
        assert (await client.get("/nowhere")).status_code == 404
        assert (await client.post("/nowhere", json={})).status_code == 404

    assert server.requests == []


async def test_a_body_may_come_packed_or_in_chunks() -> None:
    content = json.dumps(BODY).encode()
    async with ModelServer([Say("yes")]) as server, httpx2.AsyncClient(base_url=server.url) as client:
        packed = await client.post("/v1/messages", content=gzip.compress(content), headers={"content-encoding": "gzip"})
        raw = b"POST /v1/messages HTTP/1.1\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n"
        chunked = await _said(server, raw + b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content))
        unknown = await client.post("/v1/messages", content=content, headers={"content-encoding": "zstd"})

    assert packed.json()["content"][0]["text"] == "yes"
    assert chunked.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    assert unknown.status_code == 415
    assert [request.user for request in server.requests] == ["hi", "hi"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/messages HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        (b"POST /v1/messages HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 413),
        (b"POST /v1/messages HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413),
        (b"POST /v1/messages HTTP/1.1\r\ncontent-length: 1\r\ncontent-encoding: gzip\r\n\r\nx", 400),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100_000, 431),
    ],
)
async def test_what_is_no_request_is_refused_and_the_server_goes_on(sent: bytes, status: int) -> None:
    async with ModelServer([Say("yes")]) as server, httpx2.AsyncClient(base_url=server.url) as client:
        said = await _said(server, sent)
        after = await client.post("/v1/messages", json=BODY)

    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert after.status_code == 200


LEAVES = st.sampled_from([None, True, 7, "", "user", "assistant", "tool", "system", "model", "function", "custom"])
PARTS = ["role", "content", "type", "parts", "tool_calls", "name", "function", "text"]
NAMES = st.sampled_from([*PARTS, "parameters", "input_schema", "properties", "required", "enum"])
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=8
)
KEYS = ("model", "system", "messages", "tools", "input", "instructions", "contents", "systemInstruction", "stream")
BODIES = st.dictionaries(st.sampled_from(KEYS), JSON | st.lists(JSON, max_size=2), max_size=4)
PATHS = ("/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1beta/models/m:generateContent")


@given(st.sampled_from(PATHS), BODIES | JSON)
def test_any_json_is_read_or_refused(path: str, body: object) -> None:
    named = protocol(path)
    assert named is not None

    with contextlib.suppress(BadRequest):
        request = read_request(named, Received("POST", path, {}, json.dumps(body).encode()))
        assert request.body == body
        assert Player(None).turn(request) == Say("ok")
        said = answer((Use("shell"), Use("write"), Use("edit")), request)
        assert [event.encode() for event in WIRES[named].events(said)]


SCHEMAS = st.dictionaries(NAMES, JSON, max_size=4)


@given(st.dictionaries(st.sampled_from(["command", "path", "mode", "content"]), SCHEMAS), JSON)
def test_any_schema_gets_arguments(properties: dict[str, dict[str, object]], required: object) -> None:
    schema = {"properties": properties, "required": required}

    for kind in ("shell", "write", "edit"):
        assert call(Use(kind), {kind: schema}).name == kind


async def _said(server: ModelServer, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port or 0)
    writer.write(sent)
    said = await reader.read(1000)
    writer.close()
    return said
