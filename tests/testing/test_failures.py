"""Simulated failures are real on the socket."""

import asyncio
import json

import httpx2
import pytest
from anthropic import APIStatusError, AsyncAnthropic, RateLimitError
from openai import APIError, AsyncOpenAI

from shoal.testing.model import Cut, Delay, Fail, Garble, Hang, ModelServer, Say, Turn
from tests.testing.asking import asking


async def test_a_refusal_is_one_to_anthropics_own_client() -> None:
    async with (
        ModelServer([Fail(429, retry_after=0.01), Say("done")]) as server,
        AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client,
    ):
        with pytest.raises(RateLimitError) as caught:
            await client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "go"}])

    assert caught.value.response.headers["retry-after"] == "0.01"
    assert caught.value.response.headers["retry-after-ms"] == "10"


async def test_a_client_that_tries_again_gets_through() -> None:
    async with (
        ModelServer([Fail(500), Fail(429, retry_after=0.01), Say("done")]) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=3) as client,
    ):
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}])

    assert answer.choices[0].message.content == "done"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("path", "where", "kind"),
    [
        ("/v1/messages", ("error", "type"), "authentication_error"),
        ("/v1/chat/completions", ("error", "code"), "invalid_api_key"),
        ("/v1/responses", ("error", "code"), "invalid_api_key"),
        ("/v1beta/models/m:generateContent", ("error", "status"), "UNAUTHENTICATED"),
    ],
)
async def test_a_refusal_is_named_as_its_wire_does(path: str, where: tuple[str, str], kind: str) -> None:
    async with ModelServer([Fail(401, "no")]) as server, httpx2.AsyncClient(base_url=server.url) as client:
        response = await client.post(path, json={})

    assert response.status_code == 401
    assert response.json()[where[0]][where[1]] == kind
    assert response.json()["error"]["message"] == "no"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/messages", "rate_limit_error"),
        ("/v1/chat/completions", "rate_limit_exceeded"),
        ("/v1/responses", "rate_limit_exceeded"),
        ("/v1beta/models/m:streamGenerateContent", "RESOURCE_EXHAUSTED"),
    ],
)
async def test_a_refusal_may_come_within_a_stream(path: str, kind: str) -> None:
    fail = Fail(429, "try again in 1s", is_streamed=True)
    async with ModelServer([fail, Say("done")]) as server, httpx2.AsyncClient(base_url=server.url) as client:
        refused = await client.post(path, json={"stream": True})
        fine = await client.post(path, json={"stream": True})

    assert (refused.status_code, fine.status_code) == (200, 200)
    assert kind in refused.text
    assert "try again in 1s" in refused.text
    assert "done" in fine.text
    assert len(server.answers) == 1


async def test_openais_own_client_reads_a_refusal_within_a_stream() -> None:
    async with (
        ModelServer([Fail(429, "wait", is_streamed=True)]) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client,
    ):
        stream = await client.responses.create(model="m", input="go", stream=True)
        kinds = [event.type async for event in stream]
        with pytest.raises(APIError, match="wait"):
            _ = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "go"}], stream=True
                )
            ]

    assert kinds == ["response.created", "response.failed"]


async def test_anthropic_names_an_overload() -> None:
    async with (
        ModelServer() as server,
        AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client,
    ):
        with pytest.raises(APIStatusError) as caught:
            await client.messages.create(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "[[s:err529]]"}]
            )

    assert caught.value.status_code == 529


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("cut", [Cut(), Cut(after_chunks=0), Cut(after_bytes=20), Cut(after_bytes=0)])
async def test_an_answer_that_is_cut_breaks_off(cut: Cut, is_stream: bool) -> None:
    async with ModelServer([cut]) as server, asking(server) as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post(is_stream=is_stream)

    assert server.usage.output == 0
    assert len(server.requests) == 1


async def test_a_cut_comes_after_so_many_chunks() -> None:
    async with ModelServer([Cut(after_chunks=2, of=Say("one two"))]) as server:
        raw = await _raw(server, {"model": "m", "messages": [], "stream": True})

    assert raw.count(b"data: ") == 2
    assert b'"one "' in raw
    assert not raw.endswith(b"0\r\n\r\n")


async def test_what_is_garbled_is_no_json() -> None:
    async with ModelServer([Garble()]) as server, asking(server) as client:
        response = await client.post(is_stream=True)

    with pytest.raises(json.JSONDecodeError):
        json.loads(response.text.removeprefix("data: "))


@pytest.mark.parametrize("turn", [Hang(), Delay(3600, Say("late")), Delay(0, Say("a b c"), between=3600)])
async def test_closing_ends_what_is_open_at_once(turn: Turn) -> None:
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        async with ModelServer([turn]) as server:
            task = group.create_task(_raw(server, {"model": "m", "messages": [], "stream": True}))
            await server.received()
        raw = await task

    assert not raw.endswith(b"0\r\n\r\n")


async def test_a_client_that_goes_leaves_nothing_behind() -> None:
    only_read = httpx2.Timeout(30, read=0.05)
    async with ModelServer([Hang()]) as server:
        for count in range(1, 4):
            with pytest.raises(httpx2.ReadTimeout):
                async with asking(server) as client:
                    await client.http.post("/v1/chat/completions", json=client.body(), timeout=only_read)
            await server.received(count)
        async with asyncio.timeout(20):
            while server.connections:
                await asyncio.sleep(0)

    assert len(server.requests) == 3


async def _raw(server: ModelServer, body: dict[str, object]) -> bytes:
    """Send a request by hand, and give all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    content = json.dumps(body).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content))
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
