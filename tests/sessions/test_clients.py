"""A hostile client's output: forged numbers, names and floods end at most its own session."""

import asyncio
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from shoal.adapters.claude import CLIENT
from shoal.adapters.client import this_host
from shoal.adapters.events import GREATEST, explain_failure
from shoal.adapters.gemini import GeminiReader
from shoal.adapters.goose import GooseReader
from shoal.adapters.registry import adapter
from shoal.model.activity import Act, Activity
from shoal.model.masking import Mask
from shoal.proc import Stream
from shoal.sessions import clients
from shoal.sessions import clients as client_trial
from shoal.sessions.acp.wire import MOST_UNANSWERED, AcpWire, AnswersUnread
from shoal.sessions.agent_process import _read_usage, _verdict
from shoal.sessions.client_output import MOST_DENIALS, ClientOutput
from shoal.sessions.credentials import is_refreshed
from shoal.sessions.host_probe import probe_sandbox
from shoal.sessions.output_log import OutputLog

BIG = "9" * 400
FORGED = {
    "claude": [
        '{"type":"system","subtype":"api_retry","retry_delay_ms":N}',
        '{"type":"assistant","message":{"id":"a","usage":{"input_tokens":N,"output_tokens":1.5}}}',
        '{"type":"result","total_cost_usd":N,"modelUsage":{"a":{"inputTokens":N},"b":{"inputTokens":1.5}}}',
    ],
    "codex": ['{"type":"turn.completed","usage":{"input_tokens":N}}', '{"type":"turn.completed","usage":{}}'],
    "goose": ['{"type":"complete","input_tokens":N,"output_tokens":N,"cost_usd":N}'],
    "opencode": ['{"type":"step_finish","part":{"tokens":{"input":N,"output":1.5},"cost":N}}'] * 2,
}


@pytest.mark.parametrize("forged", [BIG, "1e308", "-1", "NaN", "Infinity"])
@pytest.mark.parametrize("name", FORGED)
def test_forged_numbers_stay_numbers(name: str, forged: str) -> None:
    reader = adapter(name, this_host()).reader()
    assert reader is not None

    waits = [one.seconds for line in FORGED[name] for one in reader.read(line.replace("N", forged, 1))]

    assert all(0 <= value <= 10 * GREATEST for value in (*reader.usage.values(), *waits))
    json.dumps(dict(reader.usage), allow_nan=False)


def test_a_failure_of_braces_is_told_at_once() -> None:
    began = time.monotonic()

    said = explain_failure("{" * 400_000, "log in")

    assert said.startswith("{{{")
    assert time.monotonic() - began < 5


def test_a_message_around_json_is_still_found() -> None:
    assert (
        explain_failure('API Error: 500 {"error":{"message":"too much","code":500}} (x)', "log in") == "too much (500)"
    )


def test_a_login_that_ends_after_all_time_is_no_refresh() -> None:
    assert not is_refreshed(b'{"expiresAt": 1}', f'{{"expiresAt": {BIG}}}'.encode())


def test_a_version_of_thousands_of_digits_is_none() -> None:
    assert CLIENT.version(f"{'9' * 6000}.1") is None
    assert CLIENT.version("v22.1 (x)") == (22, 1, 0)


def test_words_that_never_end_their_line_are_told_in_pieces() -> None:
    piece = {"role": "assistant", "content": [{"type": "text", "text": "x" * 1000}], "metadata": {"inference": {}}}
    goose = GooseReader()

    told = [one for _ in range(200) for one in goose.read(json.dumps({"type": "message", "message": piece}))]

    assert len(told) >= 2
    assert {one.act for one in told} == {Act.SAID}


def test_empty_words_cost_nothing() -> None:
    gemini = GeminiReader("log in")
    began = time.monotonic()

    for _ in range(100_000):
        gemini.read('{"type":"message","role":"assistant","content":""}')

    assert time.monotonic() - began < 30


class Broken:
    """A reader of another package that fails at everything."""

    is_done = False
    session = None

    @property
    def usage(self) -> Mapping[str, float]:
        raise ZeroDivisionError

    def read(self, line: str) -> Iterable[Activity]:
        if line == "denied":
            return [Activity(act=Act.DENIED, tool="x")]
        raise ZeroDivisionError

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        raise ZeroDivisionError("by zero")


def words(noted: list[object]) -> OutputLog:
    return OutputLog("run", "session", noted.append, Mask(()))


def test_a_reader_that_fails_has_found_nothing_good() -> None:
    assert _verdict(Broken(), 0, "") == "its output cannot be parsed: ZeroDivisionError: by zero"
    assert _read_usage(Broken()) == ({}, None)


async def test_what_a_reader_cannot_read_is_words() -> None:
    noted: list[object] = []
    said = words(noted)
    hearing = ClientOutput(said, Broken(), lambda one: None)

    hearing.feed(Stream.STDOUT, b"hello\n")
    hearing.close()

    assert said.output == "hello\n"


async def test_denials_do_not_flood_the_audit_log() -> None:
    told: list[Activity] = []
    hearing = ClientOutput(words([]), Broken(), told.append)

    hearing.feed(Stream.STDOUT, b"denied\n" * (MOST_DENIALS + 500))
    hearing.close()

    assert len(told) == MOST_DENIALS


class Box:
    """A process that never reads."""

    async def write(self, message: bytes) -> None:
        await asyncio.Event().wait()


async def test_questions_of_one_name_are_counted_each() -> None:
    wire = AcpWire(Box())  # type: ignore[arg-type]  # only its writing is asked for
    question = {"jsonrpc": "2.0", "id": 1, "method": "session/request_permission"}

    with pytest.raises(AnswersUnread):
        for _ in range(MOST_UNANSWERED + 1):
            wire.accept(dict(question), 10)


async def test_a_client_that_never_tells_its_version_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "claude").write_text("#!/bin/sh\nexec sleep 300\n")
    (tmp_path / "claude").chmod(0o755)
    for module in (client_trial, clients):
        monkeypatch.setattr(module, "VERSION_SECONDS", 1.0)

    async with asyncio.timeout(60):
        found = await client_trial.check_clients(
            await probe_sandbox("bubblewrap", os.environ), {"PATH": str(tmp_path), "ANTHROPIC_API_KEY": "k"}
        )

    claude = next(one for one in found if one.agent == "claude")
    assert not claude.is_ready
    assert claude.trouble == "it did not print its version within 1 s"
