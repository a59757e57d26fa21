"""Large requests are read by a process of their own: others do not wait for it, and it can be lost."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import Broken
from shoal.gateway.body_worker import BodyWorker, RemoteRecorder
from shoal.gateway.providers import ANTHROPIC, OPENAI, CheckedRequest, Route
from shoal.gateway.recording import read_exchanges, recording_file
from shoal.model.gateway import Recording
from shoal.testing.model import Say
from tests.gateway.test_model_calls import BODY, serving

LARGE: dict[str, Any] = {**BODY, "messages": [{"role": "user", "content": "a word\n" * 40_000}]}
ROUTE = Route(method="POST", path="/v1/messages", query="", is_answer=True)


def workers() -> list[int]:
    """Find the processes that this one has started to read requests."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat, command = Path(f"/proc/{name}/stat").read_text(), Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        if fields[1] == str(os.getpid()) and fields[0] != "Z" and b"body_worker" in command:
            found.append(int(name))
    return found


async def test_a_large_request_passes_and_a_large_forbidden_one_is_refused(tmp_path: Path) -> None:
    async with serving([Say("ok")] * 3, tmp_path) as gateway, gateway.client("a") as http:
        good = await http.post("/v1/messages", json=LARGE)
        bad = await http.post("/v1/messages", json={**LARGE, "tools": [{"type": "web_search_20250305"}]})

    assert good.status_code == 200
    assert gateway.model.requests[0].body == LARGE
    assert bad.status_code == 403
    assert "provider_tools: [web_search]" in bad.text
    assert len(gateway.model.requests) == 1
    assert workers() == []


async def test_a_large_chat_that_streams_is_made_to_say_what_it_cost() -> None:
    body = b'{"model":"m","stream":true,"messages":[],"user":"' + b"x" * 200_000 + b'"}'
    route = OPENAI.find_route("POST", "/v1/chat/completions")
    assert route is not None
    async with asyncio.TaskGroup() as group:
        worker = BodyWorker(group)
        found = await worker.check("openai", route, body, [])
        worker.close()

    assert found == OPENAI.check(route, body, ())
    assert isinstance(found, CheckedRequest)
    assert b"include_usage" in found.body


async def test_a_process_that_dies_costs_its_request_alone(tmp_path: Path) -> None:
    async with serving([Say("ok")] * 3, tmp_path) as gateway, gateway.client("a") as http:
        await http.post("/v1/messages", json=LARGE)
        (pid,) = workers()
        os.kill(pid, signal.SIGSTOP)
        lost = asyncio.ensure_future(http.post("/v1/messages", json=LARGE))
        while not gateway.calls.worker.is_busy:
            await asyncio.sleep(0.01)
        small = await http.post("/v1/messages", json=BODY)
        os.kill(pid, signal.SIGKILL)
        refused = await lost
        again = await http.post("/v1/messages", json=LARGE)

    assert small.status_code == 200, "small ones do not need it"
    assert refused.status_code == 503
    assert again.status_code == 200


async def test_who_does_not_wait_for_a_check_does_not_keep_others_from_theirs(tmp_path: Path) -> None:
    body = b'{"model":"m","messages":[' + b",".join([b'{"content":"12 s"}'] * 200_000) + b"]}"
    async with asyncio.TaskGroup() as group:
        worker = BodyWorker(group)
        first = group.create_task(worker.check("anthropic", ROUTE, body, []))
        while not workers():
            await asyncio.sleep(0.01)
        first.cancel()
        found = await worker.check("anthropic", ROUTE, b'{"model":"m"}', [])
        worker.close()

    assert found == ANTHROPIC.check(ROUTE, b'{"model":"m"}', ())


async def test_an_exchange_is_recorded_although_its_client_has_gone(tmp_path: Path) -> None:
    recording = Recording(folder=str(tmp_path), key="a", secrets={"KEY": "a-secret-of-the-user"})
    async with asyncio.TaskGroup() as group:
        worker = BodyWorker(group)
        tape = RemoteRecorder(recording, worker).begin("POST", "/v1/messages", b'{"model": "a-secret-of-the-user"}')
        for chunk in (b"one a-sec", b"ret-of-the-user two", b"\xff three"):
            tape.feed(chunk)
        ending = group.create_task(tape.end(200, {"content-type": "text/plain", "x": "y"}, is_whole=True))
        await asyncio.sleep(0)
        ending.cancel()
        await worker.settle()
        worker.close()

    (exchange,) = read_exchanges(recording_file(tmp_path, "a"))
    assert (exchange.turn, exchange.status, exchange.is_whole) == (1, 200, True)
    assert exchange.headers == {"content-type": "text/plain"}
    assert b"a-secret-of" not in b"".join(exchange.chunks) + str(exchange.request).encode()
    assert b"".join(exchange.chunks).endswith(b" two\xff three")


async def test_a_job_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.gateway.body_worker.SECONDS", 0.2)
    body = b'{"model":"m","messages":[' + b",".join([b'{"content":"12 s"}'] * 300_000) + b"]}"
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        worker = BodyWorker(group)
        with pytest.raises(Broken, match="could not be read"):
            await worker.check("anthropic", ROUTE, body, [])
        worker.close()

    assert time.monotonic() - began < 60
    assert workers() == []
