"""What is recorded, what of it is left out, and how a replay finds its answers."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.gateway.recording import (
    Divergence,
    Normalizer,
    RecordedExchange,
    Recorder,
    Replayer,
    find_differences,
    read_exchanges,
    recording_file,
)
from shoal.model.masking import Mask

PLAIN = Normalizer()
KEY = "build/worker_0/1"
SECRET = "hunter2-hunter2-hunter2"
TARGET = "/v1/messages?beta=true"


def body(prompt: str, **more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], **more}).encode()


def record(folder: Path, *prompts: str, normalizer: Normalizer = PLAIN, answer: bytes = b"hi") -> None:
    recorder = Recorder(folder, KEY, normalizer)
    for prompt in prompts:
        exchange = recorder.begin("POST", TARGET, body(prompt))
        exchange.feed(answer + prompt.encode())
        exchange.end(200, {"Content-Type": "text/event-stream", "set-cookie": "x"}, is_whole=True)


def test_the_same_requests_get_the_same_answers_whatever_their_order(tmp_path: Path) -> None:
    record(tmp_path, "one", "two", "two")
    replayer = Replayer(tmp_path, KEY, Normalizer())

    found = [replayer.answer("POST", TARGET, body(prompt)) for prompt in ("two", "one", "two", "two")]

    assert [exchange.chunks for exchange in found if isinstance(exchange, RecordedExchange)] == [
        *([b"hitwo"], [b"hione"], [b"hitwo"])
    ]
    assert isinstance(found[3], Divergence)
    assert found[3].text == f"the replay diverged: {KEY}, request 4: it was an end and is now POST {TARGET}"
    assert replayer.unasked == 0


def test_a_changed_prompt_is_named_at_the_place_where_it_differs(tmp_path: Path) -> None:
    record(tmp_path, "Write a poem about the sea, please.", "another")
    replayer = Replayer(tmp_path, KEY, Normalizer())

    found = replayer.answer("POST", TARGET, body("Write a poem about the sky, please."))

    assert isinstance(found, Divergence)
    assert (found.turn, found.field) == (1, "messages[0].content")
    assert "the sea" in found.recorded
    assert "the sky" in found.now
    assert replayer.unasked == 2


def test_what_every_run_has_of_its_own_is_no_difference(tmp_path: Path) -> None:
    first = Normalizer({"run-1": "<run>", "/repo/.shoal/boxes/s1": "<box>"})
    second = Normalizer({"run-2": "<run>", "/repo/.shoal/boxes/s2": "<box>"})
    words = "in /repo/.shoal/boxes/{box}/home of {run} at {date} with {uuid} after {took}: {hash}"
    one = words.format(
        box="s1",
        run="run-1",
        date="2026-11-19",
        uuid="0" * 8 + "-0000-0000-0000-" + "0" * 12,
        took="0.31s",
        hash="a" * 40,
    )
    two = words.format(
        box="s2",
        run="run-2",
        date="2027-01-02",
        uuid="1" * 8 + "-0000-0000-0000-" + "0" * 12,
        took="12 ms",
        hash="b" * 40,
    )
    record(tmp_path, one, normalizer=first)

    found = Replayer(tmp_path, KEY, second).answer("POST", TARGET, body(two, metadata={"user_id": "x"}))
    same = Replayer(tmp_path, KEY, second).answer("POST", TARGET, body(two))

    assert isinstance(found, Divergence)
    assert found.field == "metadata"
    assert isinstance(same, RecordedExchange)


def test_no_secret_is_recorded_also_none_that_is_cut_in_two(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, KEY, Normalizer(mask=Mask.of({"TOKEN": SECRET})))
    exchange = recorder.begin("POST", TARGET, body(f"my token is {SECRET}"))
    for chunk in (b"data: " + SECRET[:9].encode(), SECRET[9:].encode() + b"\n", b"\xff\xfe"):
        exchange.feed(chunk)
    exchange.end(200, {}, is_whole=False)

    (found,) = read_exchanges(recording_file(tmp_path, KEY))

    assert SECRET not in repr(found)
    assert b"".join(found.chunks) == b"data: [secret TOKEN]\n\xff\xfe"
    assert not found.is_whole
    assert recording_file(tmp_path, KEY).stat().st_mode & 0o777 == 0o600


def test_an_exchange_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    record(tmp_path, "one", "two")
    file = recording_file(tmp_path, KEY)
    whole = file.read_bytes()

    for end in range(len(whole) - 1, len(whole) - 40, -1):
        file.write_bytes(whole[:end])
        assert [exchange.turn for exchange in read_exchanges(file)][:1] == [1]


@pytest.mark.parametrize("content", [b"hello", b"\x1f\x8b" + b"x" * 30])
def test_another_file_is_a_mistake_that_is_explained(tmp_path: Path, content: bytes) -> None:
    recording_file(tmp_path, KEY).write_bytes(content)

    with pytest.raises(BadInput, match="no recording"):
        Replayer(tmp_path, KEY, Normalizer())


def test_a_session_that_was_not_recorded_diverges_at_once(tmp_path: Path) -> None:
    found = Replayer(tmp_path, "other", Normalizer()).answer("POST", TARGET, body("x"))

    assert isinstance(found, Divergence)
    assert found.recorded == "nothing at all"


def test_a_count_may_be_asked_again(tmp_path: Path) -> None:
    record(tmp_path, "one")
    replayer = Replayer(tmp_path, KEY, Normalizer())

    for _ in range(3):
        assert isinstance(replayer.answer("POST", TARGET, body("one"), is_answer=False), RecordedExchange)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, JSON)
def test_two_documents_differ_somewhere_or_are_the_same(recorded: object, now: object) -> None:
    differences = list(find_differences(recorded, now))

    assert not list(find_differences(recorded, recorded))
    assert all(len(shown) < 2000 for difference in differences for shown in difference)


@given(st.binary(max_size=60), JSON)
def test_a_key_may_hold_any_characters_and_a_request_any_bytes(raw: bytes, document: object) -> None:
    normalizer = Normalizer({"run-1": "<run>"})
    text = raw.decode(errors="replace").replace("\0", "")

    assert recording_file(Path("/x"), text).parent == Path("/x")
    normalizer.request(raw)
    assert normalizer.request(json.dumps(normalizer.request(json.dumps(document).encode())).encode()) is not ...
