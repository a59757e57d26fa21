"""What a sandbox sends to the gateway: only plain, whole requests with the token of their session are passed on."""

import asyncio
import contextlib
import gzip
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gateway.arrivals import MOST_CONNECTIONS, serve_listener
from shoal.gateway.client_connection import HEAD
from shoal.gateway.model_calls import KeyCover, ModelCalls
from shoal.gateway.providers import ANTHROPIC
from shoal.gateway.server import SessionServer
from shoal.gateway.upstream_connection import UpstreamFailed, UpstreamPool
from shoal.model.gateway import SessionOrder, Upstream

KEY = "sk-real-key-0123456789"
BODY = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = b'{"type": "message", "model": "m", "content": [], "usage": {"input_tokens": 3, "output_tokens": 2}}'


@dataclass
class Served:
    """A session of the gateway on loopback, with an upstream that keeps what it was sent."""

    port: int
    order: SessionOrder
    upstream: list[bytes] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, raw: bytes) -> bytes:
        """Send bytes, and give all that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(raw)
            async with asyncio.timeout(20):
                return await reader.read()
        except ConnectionError:  # it was cut off before it was read
            return b""
        finally:
            writer.close()

    def request(
        self, *more: str, target: str = "/anthropic/v1/messages", body: bytes = BODY, method: str = "POST"
    ) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", "Host: x", f"x-api-key: {self.order.token}", "Connection: close", *more]
        return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, answer: bytes = ANSWER, status: str = "200 OK") -> AsyncIterator[Served]:
    served: Served

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            served.upstream.append(head + await reader.readexactly(size))
            writer.write(
                f"HTTP/1.1 {status}\r\ncontent-length: {len(answer)}\r\nset-cookie: a=b\r\n\r\n".encode() + answer
            )
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as model, asyncio.TaskGroup() as group:
        url = f"http://127.0.0.1:{model.sockets[0].getsockname()[1]}"
        upstream = Upstream(name="anthropic", url=url, format="anthropic", key=KEY)
        order = SessionOrder(session="s", run="r", step="w", upstreams=(upstream,))
        listener = socket.create_server(("127.0.0.1", 0), backlog=1100)
        served = Served(listener.getsockname()[1], order)
        calls = ModelCalls({"XDG_STATE_HOME": str(tmp_path)}, group)
        server = SessionServer(order, calls, lambda message: served.said.append(dict(message)))
        task = group.create_task(serve_listener(listener, server.serve))
        yield served
        task.cancel()
        await asyncio.wait((task,))
        calls.close()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def test_the_key_takes_the_place_of_the_token_and_of_every_other_credential(tmp_path: Path) -> None:
    async with serving(tmp_path) as here:
        answer = await here.send(
            here.request("Authorization: Bearer " + here.order.token, "Cookie: a=b", "X-Kept: yes")
        )

    (sent,) = here.upstream
    head = sent.partition(b"\r\n\r\n")[0].lower()
    assert status_of(answer) == 200
    assert answer.endswith(ANSWER)
    assert b"x-api-key: " + KEY.encode() in head
    assert b"x-kept: yes" in head
    assert here.order.token.encode() not in sent
    assert b"cookie" not in head + answer.lower()
    assert KEY.encode() not in answer
    (exchange,) = [message for message in here.said if message["event"] == "exchange"]
    assert (exchange["status"], exchange["usage"]["input"]) == (200, 3)


async def test_an_answer_that_repeats_the_key_comes_back_without_it(tmp_path: Path) -> None:
    async with serving(tmp_path, f'{{"error": "Incorrect API key: {KEY}"}}'.encode(), "401 Unauthorized") as here:
        answer = await here.send(here.request())

    assert status_of(answer) == 401
    assert b"Incorrect API key: ***" in answer
    assert KEY.encode() not in answer


async def test_a_header_that_repeats_the_key_comes_back_without_it(tmp_path: Path) -> None:
    async with serving(tmp_path, b"{}", f"401 Unauthorized\r\nx-asked-with: {KEY}") as here:
        answer = await here.send(here.request())

    assert b"x-asked-with: ***" in answer
    assert KEY.encode() not in answer


async def test_what_is_said_of_a_broken_answer_does_not_repeat_the_key(tmp_path: Path) -> None:
    async with serving(tmp_path, b"{}", f"401 Unauthorized\r\nno colon {KEY}") as here:
        answer = await here.send(here.request())

    assert status_of(answer) == 502
    assert KEY.encode() not in answer
    assert KEY not in str(here.said)


async def test_a_request_that_a_server_does_not_answer_is_sent_twice_at_most() -> None:
    sent: list[int] = []
    ended: list[int] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                sent.append(len(sent))
                if len(sent) > 4:
                    break
                while len(sent) < 4:  # so that four connections are open
                    await asyncio.sleep(0.01)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        ended.append(len(ended))

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as model:
        pool, url = UpstreamPool({}), f"http://127.0.0.1:{model.sockets[0].getsockname()[1]}"

        async def ask() -> None:
            async with pool.ask(url, ("GET", "/", []), b"") as answer:
                assert [chunk async for chunk in answer.chunks()] == []

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(ask())
        with pytest.raises(UpstreamFailed):
            await ask()
        pool.close()
        while len(ended) < 5:
            await asyncio.sleep(0.01)

    assert len(sent) == 6


@given(st.lists(st.sampled_from([b"abac", b"ab", b"a", b"c", b"-"])), st.data())
def test_a_key_is_covered_however_an_answer_is_split(words: list[bytes], data: st.DataObject) -> None:
    text = b"".join(words)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    cover = KeyCover("abac")
    pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]

    assert b"".join([*map(cover.feed, pieces), cover.close()]) == text.replace(b"abac", b"****")


async def test_a_redirect_is_not_followed_and_not_passed_back(tmp_path: Path) -> None:
    async with serving(tmp_path, b"", "302 Found\r\nlocation: http://169.254.169.254/") as here:
        answer = await here.send(here.request())

    assert status_of(answer) == 502
    assert b"169.254" not in answer
    assert len(here.upstream) == 1


async def test_the_token_of_another_session_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as here:
        other = SessionOrder(session="o", run="r", step="w", upstreams=()).token
        raw = here.request().replace(here.order.token.encode(), other.encode())
        none = here.request().replace(f"x-api-key: {here.order.token}\r\n".encode(), b"")

        assert [status_of(await here.send(wrong)) for wrong in (raw, none)] == [401, 401]
    assert here.upstream == []


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
HEADLINE = b"POST /anthropic/v1/messages HTTP/1.1\r\nHost: x\r\n"
HOSTILE = {
    "length and chunks": HEADLINE + b"Content-Length: 4\r\n" + CHUNKED,
    "two lengths": HEADLINE + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    "two codings": HEADLINE + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding with a tab": HEADLINE + b"Transfer-Encoding:\tchunked \r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "space before the colon": HEADLINE + b"Content-Length : 4\r\n\r\nabcd",
    "folded line": HEADLINE + b"X-A: b\r\n c: d\r\n\r\n",
    "bare line end": HEADLINE.replace(b"\r\n", b"\n") + b"\r\n\r\n",
    "zero byte": HEADLINE + b"X-A: b\0c\r\n\r\n",
    "negative length": HEADLINE + b"Content-Length: -1\r\n\r\n",
    "signed length": HEADLINE + b"Content-Length: +4\r\n\r\nabcd",
    "absolute form": HEADLINE.replace(b" /anthropic", b" http://169.254.169.254/anthropic") + b"\r\n",
    "connect": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n",
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http 0.9": b"GET /anthropic/v1/models\r\n\r\n",
    "http 3": HEADLINE.replace(b"HTTP/1.1", b"HTTP/3.0") + b"\r\n",
    "two hosts": HEADLINE + b"Host: y\r\n\r\n",
    "no host": b"POST /anthropic/v1/messages HTTP/1.1\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "many headers": HEADLINE + b"".join(b"X-%d: y\r\n" % number for number in range(101)) + b"\r\n",
    "long head": HEADLINE + b"X: " + b"y" * 2**17 + b"\r\n\r\n",
    "large body": HEADLINE + b"Content-Length: 99999999999\r\n\r\n",
    "small letters": HEADLINE.replace(b"POST", b"post") + b"\r\n",
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
async def test_what_two_servers_could_read_differently_goes_nowhere(tmp_path: Path, raw: bytes) -> None:
    async with serving(tmp_path) as here:
        answer = await here.send(
            raw.replace(b"Host: x\r\n", b"Host: x\r\nx-api-key: " + here.order.token.encode() + b"\r\n", 1)
        )

    assert status_of(answer) in (0, 400, 413, 431), answer
    assert here.upstream == []


SEARCHES = b'{"model": "m", "messages": [], "tools": [{"type": "web_search_20250305", "name": "s"}]}'
BODIES = {
    "plain": SEARCHES,
    "key twice": b'{"tools": [], ' + SEARCHES[1:],
    "key in other letters": SEARCHES.replace(b'"tools"', b'"Tools"'),
    "escaped key": SEARCHES.replace(b'"tools"', b'"\\u0074ools"'),
    "escaped value": SEARCHES.replace(b'"web_search', b'"web\\u005fsearch'),
    "utf-16": SEARCHES.decode().encode("utf-16-le"),
    "utf-32": SEARCHES.decode().encode("utf-32"),
    "byte order mark": b"\xef\xbb\xbf" + SEARCHES,
    "utf-7": SEARCHES.replace(b'"tools"', b"+ACI-tools+ACI-"),
    "gzip": gzip.compress(SEARCHES),
    "two documents": b'{"model": "m", "messages": []}' + SEARCHES,
    "lines": b'{"model": "m", "messages": []}\n' + SEARCHES,
    "form": b"model=m&tools=web_search",
    "multipart": b'--x\r\nContent-Disposition: form-data; name="tools"\r\n\r\nweb_search\r\n--x--\r\n',
    "a list": b"[" + SEARCHES + b"]",
    "not a number": SEARCHES.replace(b'"m"', b"NaN"),
    "a comment": b"/* */" + SEARCHES,
    "nested": b'{"model": "m", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-7", "multipart/form-data; boundary=x"]
)
async def test_no_encoding_leads_a_tool_of_the_provider_past_the_check(tmp_path: Path, body: bytes, kind: str) -> None:
    async with serving(tmp_path) as here:
        answer = await here.send(here.request(f"Content-Type: {kind}", body=body))

    assert status_of(answer) == 403, answer
    assert here.upstream == []


async def test_a_compressed_request_is_refused_and_a_plain_one_is_said_to_be_json(tmp_path: Path) -> None:
    async with serving(tmp_path) as here:
        packed = await here.send(here.request("Content-Encoding: gzip", body=gzip.compress(BODY)))
        plain = await here.send(here.request("Content-Type: text/plain; charset=utf-7", "Content-Encoding: identity"))

    assert (status_of(packed), status_of(plain)) == (415, 200)
    (sent,) = here.upstream
    assert b"content-type: application/json\r\n" in sent
    assert b"utf-7" not in sent


@pytest.mark.parametrize(
    "target", ["/v1/messages/batches", "/v1/files", "/v1/complete", "/v1/skills", "/v1/organizations"]
)
async def test_batches_files_and_everything_else_of_a_provider_is_refused(tmp_path: Path, target: str) -> None:
    async with serving(tmp_path) as here:
        answers = [await here.send(here.request(target=f"/anthropic{target}", method=how)) for how in ("POST", "GET")]

    assert [status_of(answer) for answer in answers] == [403, 403]
    assert here.upstream == []


async def test_a_second_request_hidden_in_a_first_is_not_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as here:
        answer = await here.send(here.request().replace(b"Connection: close\r\n", b"") + here.request())

    assert answer.count(b"HTTP/1.1 200") == 1
    assert len(here.upstream) == 1


TARGETS = (
    *(
        "/anthropic/v1/organizations",
        "/anthropic/v1/messages/batches",
        "/anthropic/v1/files",
        "/anthropic/../x",
        "/other/v1/x",
    ),
    *(
        "/anthropic/v1/messages%2f..",
        "/anthropic//v1/messages",
        "/anthropic/v1/messages#x",
        "/anthropic/v1/messages?key=a",
    ),
    *("/", "/anthropic", "/anthropic/v1/messages/../../v1/files"),
)


@pytest.mark.parametrize("target", TARGETS)
async def test_only_calls_to_models_pass(tmp_path: Path, target: str) -> None:
    async with serving(tmp_path) as here:
        answer = await here.send(here.request(target=target))

    assert status_of(answer) in (403, 404), answer
    assert here.upstream == []


async def test_a_change_of_protocol_is_refused_so_that_clients_fall_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as here:
        answer = await here.send(here.request("Upgrade: websocket", "Sec-WebSocket-Key: x", body=b"", method="GET"))

    assert status_of(answer) == 426
    assert here.upstream == []


async def test_a_flood_of_connections_waits_and_others_are_served(tmp_path: Path) -> None:
    """A thousand sockets of one sandbox that say nothing hold no more than its own share."""
    async with (
        serving(tmp_path / "a") as flooded,
        serving(tmp_path / "b") as other,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(1000):
            writer = (await asyncio.open_connection("127.0.0.1", flooded.port))[1]
            stack.callback(writer.close)
        async with asyncio.timeout(5):
            answer = await other.send(other.request())

    assert status_of(answer) == 200
    assert MOST_CONNECTIONS < 1000


async def test_who_only_counts_tokens_cannot_have_the_provider_fetch_a_url_either(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://evil.test/?secret"}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": [image]}]}).encode()
    async with serving(tmp_path) as here:
        answer = await here.send(here.request(target="/anthropic/v1/messages/count_tokens", body=body))

    assert status_of(answer) == 403, answer
    assert here.upstream == []


async def test_a_body_in_tiny_pieces_is_refused_before_it_takes_long(tmp_path: Path) -> None:
    async with serving(tmp_path) as here:
        head = here.request("Transfer-Encoding: chunked", body=b"").replace(b"Content-Length: 0\r\n", b"")
        answer = await here.send(head + b"1\r\n \r\n" * 1100 + b"0\r\n\r\n")

    assert status_of(answer) == 400, answer


def test_a_head_of_spaces_is_refused_at_once() -> None:
    head = b"GET / HTTP/1.1\r\na:" + b" " * 60_000 + b"\x01\r\n\r\n"  # took some seconds, for all sessions
    began = time.process_time()

    assert not HEAD.fullmatch(head)
    assert time.process_time() - began < 1


async def test_a_large_body_is_checked_while_others_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as here:
        body = BODY[:-1] + b', "metadata": [' + b"{}," * 400_000 + b"{}]}"
        began = time.thread_time()
        assert ANTHROPIC.refusal(body, ()) is None
        checked = time.thread_time()
        answer = await here.send(here.request(body=body))
        served = time.thread_time()

    assert status_of(answer) == 200, answer
    assert served - checked < (checked - began) / 2, "it was checked on the event loop"


async def test_a_client_that_leaves_ends_its_exchange(tmp_path: Path) -> None:
    async with serving(tmp_path) as here:
        _, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(here.request()[:-5])
        await writer.drain()
        writer.transport.abort()
        answer = await here.send(here.request())

    assert status_of(answer) == 200
    assert len(here.upstream) == 1
