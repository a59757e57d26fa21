"""Bytes become lines, however they are split; a budget counts the excess."""

import itertools
import time
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.proc import LineSplitter, OutputBudget, open_process
from tests.proc.acting import MIB, by_line, python


def lines_of(chunks: Sequence[bytes], cap: int = 16 * MIB) -> list[tuple[str, int]]:
    emitted: list[tuple[str, int]] = []
    lines = LineSplitter(lambda text, dropped: emitted.append((text, dropped)), cap=cap)
    for chunk in chunks:
        lines.feed(chunk)
    lines.close()
    lines.close()
    return emitted


def reference(content: bytes, cap: int) -> list[tuple[str, int]]:
    pieces = content.split(b"\n")
    whole = [piece.removesuffix(b"\r") for piece in (pieces if pieces[-1] else pieces[:-1])]
    texts = [line[:cap].decode("utf-8", "replace").replace("\x00", "\ufffd") for line in whole]
    return [(text, max(0, len(line) - cap)) for text, line in zip(texts, whole, strict=True)]


PIECES = st.lists(
    st.one_of(st.binary(max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r", b"\x00", "é€🐟".encode(), b"\xe2\x82"])),
    max_size=20,
)


@given(PIECES, st.lists(st.integers(0, 80), max_size=8), st.sampled_from([1, 2, 5, 1000]))
@settings(max_examples=300, deadline=None)
def test_lines_are_the_same_however_they_are_chunked(pieces: list[bytes], cuts: list[int], cap: int) -> None:
    content = b"".join(pieces)
    borders = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [content[start:end] for start, end in itertools.pairwise(borders)]

    assert lines_of(chunks, cap) == reference(content, cap)


def test_invalid_utf8_and_borders_inside_a_character() -> None:
    fish = "🐟".encode()

    assert lines_of([fish[:1], fish[1:3], fish[3:] + b"\xff\xe2\x82", b"\n\x00\r", b"\n"]) == [
        ("🐟\ufffd\ufffd", 0),
        ("\ufffd", 0),
    ]


def test_a_line_of_exactly_the_cap_is_not_cut_by_its_line_end() -> None:
    assert lines_of([b"abcd\r", b"\nabcde\r\nabcd"], cap=4) == [("abcd", 0), ("abcd", 1), ("abcd", 0)]


async def test_a_line_of_20_mib_is_cut_and_quick() -> None:
    emitted: list[tuple[int, int]] = []
    lines = LineSplitter(lambda text, dropped: emitted.append((len(text), dropped)))
    before = time.process_time()

    script = "import sys; sys.stdout.write('x' * (20 * 2**20) + '\\nnext')"
    async with open_process(python(script), sink=by_line(lines)) as process:
        await process.wait()
    lines.close()

    assert emitted == [(16 * MIB, 4 * MIB), (4, 0)]
    assert time.process_time() - before < 2


def test_a_budget_keeps_at_most_its_limit_and_counts_the_rest() -> None:
    budget = OutputBudget(10)

    admitted = [budget.admit(size) for size in (4, 6, 1, 5, 0)]

    assert admitted == [True, True, False, False, True]
    assert budget.dropped == 6
