"""Counting the tokens of answers: every provider, every way to cut a stream into chunks, and hostile ones."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.gateway import meters
from shoal.gateway.meters import TokenUsage, UsageMeter
from shoal.gateway.providers import PROVIDERS
from shoal.testing.model import Cut, ModelServer, Say, Turn, Usage

SPENT = Usage(input=100, output=7, cached=40)
ANSWER = Say('It says "usage": {"output_tokens": 999}\n\ndata: {"usage": {}}\r\nand äöü 🐟.', SPENT)
MESSAGES = [{"role": "user", "content": "go"}]
CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "messages": ("anthropic", "/v1/messages", {"model": "m", "max_tokens": 9, "messages": MESSAGES}),
    "chat": ("openai", "/v1/chat/completions", {"model": "m", "messages": MESSAGES}),
    "responses": ("openai", "/v1/responses", {"model": "m", "input": "go"}),
    "gemini": (
        "gemini",
        "/v1beta/models/m:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
    ),
}
EXPECTED = TokenUsage(model="m", input=60, cached_input=40, output=7)


async def body_of(call: str, *, is_stream: bool, script: Sequence[Turn] = (ANSWER,)) -> bytes:
    """Ask the model server, and return the bytes of its answer."""
    _, target, document = CALLS[call]
    if is_stream and call == "gemini":
        target = target.replace(":generate", ":streamGenerate").replace("Content", "Content?alt=sse")
    elif is_stream:
        document = {**document, "stream": True}
    body = bytearray()
    async with ModelServer(script) as server, httpx2.AsyncClient(base_url=server.url) as http:
        try:
            async with http.stream("POST", target, json=document) as response:
                async for chunk in response.aiter_raw():
                    body += chunk
        except httpx2.RemoteProtocolError:
            assert isinstance(script[0], Cut)
    return bytes(body)


def count(call: str, chunks: Sequence[bytes]) -> TokenUsage | None:
    meter = PROVIDERS[CALLS[call][0]].meter()
    for chunk in chunks:
        meter.feed(chunk)
    return meter.usage


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("call", CALLS)
async def test_every_way_to_chunk_an_answer_gives_the_same_count(call: str, is_stream: bool) -> None:
    body = await body_of(call, is_stream=is_stream)

    @given(st.lists(st.integers(0, len(body)), max_size=12))
    @settings(max_examples=60, deadline=None)
    def check(cuts: list[int]) -> None:
        places = [0, *sorted(cuts), len(body)]
        assert count(call, [body[start:end] for start, end in itertools.pairwise(places)]) == EXPECTED

    check()
    assert count(call, [bytes([byte]) for byte in body]) == EXPECTED
    crlf = body.replace(b"\n", b"\r\n") if is_stream else body
    assert count(call, [bytes([byte]) for byte in crlf]) == EXPECTED
    assert count(call, [body.rstrip()]) == EXPECTED, "the last blank line is missing"


@pytest.mark.parametrize("call", CALLS)
async def test_an_answer_that_is_cut_off_is_estimated(call: str) -> None:
    cut = Cut(after_chunks=20, of=Say("word " * 500, SPENT))
    body = await body_of(call, is_stream=True, script=[cut])
    meter = PROVIDERS[CALLS[call][0]].meter()
    meter.feed(body)

    found = meter.estimate(400, "m")

    assert len(body) > 500
    assert found.is_estimated
    assert found.model == "m"
    assert found.total_input == 100, "by the provider, or a quarter of the bytes"
    assert 5 <= found.output < 500


def test_gemini_may_stream_a_list() -> None:
    parts = [
        {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": n}, "modelVersion": "m"} for n in (1, 2, 3)
    ]
    body = json.dumps(parts, indent=1).encode()

    assert count("gemini", [body]) == TokenUsage(model="m", input=5, output=3)
    assert count("gemini", [body[:-30]]) == TokenUsage(model="m", input=5, output=2), "cut off in the last part"


def test_anthropic_writes_to_caches_of_two_ages() -> None:
    usage = {"input_tokens": 1, "cache_creation_input_tokens": 30, "cache_creation": {"ephemeral_1h_input_tokens": 20}}
    body = json.dumps({"model": "m", "usage": {**usage, "cache_read_input_tokens": 4, "output_tokens": 2}}).encode()

    found = count("messages", [body])

    assert found == TokenUsage(model="m", input=1, cached_input=4, cache_write=10, cache_write_1h=20, output=2)
    assert (found.total_input, found.total) == (35, 37)


BAD = [-1, True, 1.5, "7", None, [], {}, 2**70, 1e300]


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_a_count_that_is_none_is_ignored(value: object) -> None:
    stream: list[dict[str, object]] = [{"usage": {"prompt_tokens": 5, "completion_tokens": 3}, "model": "m"}]
    stream += [{"usage": {"prompt_tokens": value, "completion_tokens": value}, "model": value}]
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in stream)

    found = count("chat", [body])

    assert found is not None
    assert (found.total_input, found.output) == (5, 3)
    assert len(found.model) < 300


@given(st.binary(max_size=400), st.sampled_from(["messages", "chat", "responses", "gemini"]))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_without_an_error(body: bytes, call: str) -> None:
    count(call, [b"data: ", body, b"\n\n"])
    count(call, [body])
    count(call, [b"{", body])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["usage", "message", "response", "usageMetadata", "model", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(["messages", "chat", "responses", "gemini"]))
@settings(max_examples=150, deadline=None)
def test_json_of_any_shape_is_read_without_an_error(document: object, call: str) -> None:
    count(call, [json.dumps(document).encode()])
    count(call, [b"data: ", json.dumps(document).encode(), b"\n\n"])


def test_memory_is_bounded_and_a_large_event_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MOST_EVENT", 1000)
    monkeypatch.setattr(meters, "MOST_DOCUMENT", 1000)
    usage = b'data: {"usage": {"prompt_tokens": 5, "completion_tokens": 3}}\n\n'
    stream, document = UsageMeter(meters.read_openai), UsageMeter(meters.read_openai)

    for chunk in [b"data: ", *([b"x" * 100] * 1000), b"\n\n", *([b"data: " + b"y" * 100 + b"\n"] * 1000), b"\n", usage]:
        stream.feed(chunk)
        assert len(stream._held) + sum(map(len, stream._data)) <= 2200
    for _ in range(1000):
        document.feed(b'{"x": "' + b"x" * 100)
        assert len(document._held) <= 1100

    assert stream.usage == TokenUsage(input=5, output=3)
    assert document.usage is None
