"""An agent's output is kept within limits, and floods are throttled."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.model.events import Output
from shoal.model.masking import Mask
from shoal.proc import LineBatcher, LineSplitter, Stream
from shoal.sessions import output_log as kept
from shoal.sessions.output_log import (
    BURST_BYTES,
    FEW,
    HONEST_BYTES,
    LINE_COST_BYTES,
    LONGEST,
    MANY_BYTES,
    FloodControl,
    OutputLog,
)

PIECES = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\r", b"\0", b"\xff", "é€".encode()]), max_size=30)


def heard(*chunks: bytes) -> tuple[OutputLog, list[Output]]:
    said: list[Output] = []
    words = OutputLog("run", "session", lambda event: said.append(event) if isinstance(event, Output) else None, Mask())
    for chunk in chunks:
        words.feed(Stream.STDOUT, chunk)
    words.close()
    return words, said


def emitted(kind: type[LineSplitter], chunks: Sequence[bytes], cap: int) -> tuple[list[str], int]:
    texts: list[tuple[str, int]] = []
    lines = kind(lambda text, cut: texts.append((text, cut)), cap=cap)
    for chunk in chunks:
        lines.feed(chunk)
    lines.close()
    return "\n".join(text for text, _ in texts).split("\n"), sum(cut for _, cut in texts)


@given(PIECES, st.lists(st.integers(0, 40), max_size=6), st.sampled_from([1, 3, 1000]))
@settings(max_examples=200, deadline=None)
def test_passages_are_the_same_lines_in_fewer_texts(pieces: list[bytes], cuts: list[int], cap: int) -> None:
    content = b"".join(pieces)
    borders = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [content[start:end] for start, end in itertools.pairwise(borders)]

    assert emitted(LineBatcher, chunks, cap) == emitted(LineSplitter, chunks, cap)


def test_a_chunk_of_lines_is_one_event() -> None:
    _, said = heard(b"y\n" * 30_000, b"half", b" a line\nand", b" more")

    assert len(said) == 3
    assert "\n".join(one.text for one in said) == "y\n" * 30_000 + "half a line\nand more"


def test_the_log_is_bounded_by_what_it_takes_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A character that is encoded with six bytes counts as six, an event as its row, and every byte is kept or counted."""
    monkeypatch.setattr(kept, "LOG_BYTES", 10_000)
    chunks = [b"\x01\n", b"\xff" * 100 + b"\n"] * 100

    _, said = heard(*chunks)

    assert sum(len(json.dumps(one.text)) + kept.EVENT_BYTES for one in said[:-1]) <= 10_000
    assert said[-1].text == ""
    bytes_kept = sum(len(one.text) + 1 for one in said[:-1])
    signs_dropped = 100 * 103 - bytes_kept
    assert signs_dropped <= said[-1].dropped <= 3 * signs_dropped
    assert all(one.dropped == 0 for one in said[:-1]), "the log is a beginning, without holes"


@pytest.mark.deep
def test_the_end_of_what_was_said_is_whole_lines() -> None:
    words, _ = heard(*(b"%06d\n" % number for number in range(50_000)))

    first, *lines = words.output.splitlines()
    assert first == "[earlier output left out]"
    assert lines == [f"{number:06d}" for number in range(50_000 - len(lines), 50_000)]
    assert 60_000 < len(words.output) <= 65_536 + 30


@pytest.mark.parametrize("text", ["", "a\n", "a\nb\n"])
def test_short_output_is_given_as_it_is(text: str) -> None:
    assert heard(text.encode())[0].output == text


def test_a_line_without_an_end_is_cut_and_counted() -> None:
    words, said = heard(*[b"x" * 60_000] * 100)

    (one,) = said
    assert len(one.text) + one.dropped == 6_000_000
    assert len(one.text) == kept.LINE_BYTES
    assert len(words.output) < 70_000


def test_a_flood_alone_goes_on_and_two_wait_for_each_other() -> None:
    flood = FloodControl()
    one, two, quiet = (flood.talker().flow() for _ in range(3))
    chunk = b"x" * BURST_BYTES

    assert not any(one.rest(chunk) for _ in range(3 * HONEST_BYTES // BURST_BYTES))
    assert two.rest(chunk) == 0, "a burst is nobody's flood"
    assert two.rest(b"x" * (HONEST_BYTES + BURST_BYTES)) == 0, "nor is as much as honest work says"
    assert 0 < two.rest(chunk) <= LONGEST
    assert one.rest(chunk) > 0
    assert quiet.rest(b"hello\n") == 0


def test_a_few_agents_that_print_megabytes_never_wait_for_each_other() -> None:
    flood = FloodControl()
    talkers = [flood.talker().flow() for _ in range(FEW)]
    chunk = b"0123456789\n" * 6000

    rests = [talker.rest(chunk) for _ in range(12_000_000 // len(chunk)) for talker in talkers]

    assert not any(rests)


def test_many_agents_that_print_megabytes_share_a_rate() -> None:
    flood = FloodControl()
    talkers = [flood.talker().flow() for _ in range(8)]
    chunk = b"0123456789\n" * 6000

    rests = [sum(talker.rest(chunk) for _ in range(12_000_000 // len(chunk))) for talker in talkers]

    seconds = 12_000_000 * (1 + LINE_COST_BYTES / 11) * 8 / MANY_BYTES
    assert rests[0] == 0
    assert 0.5 * seconds < rests[-1] < 1.1 * seconds


def test_both_streams_of_an_agent_spend_one_share() -> None:
    flood = FloodControl()
    talker, other = flood.talker(), flood.talker().flow()
    out, err = talker.flow(), talker.flow()
    chunk = b"x" * HONEST_BYTES

    assert (out.rest(chunk), err.rest(chunk), other.rest(b"x" * 2 * HONEST_BYTES)) == (0, 0, 0)
    assert err.rest(chunk) > 0


def test_many_sips_are_spaced() -> None:
    flow = FloodControl().talker().flow()

    rests = [flow.rest(b"y\n") for _ in range(100)]

    assert rests[0] == 0
    assert rests[-1] > 0.5
