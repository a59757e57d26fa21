"""No known secret gets through, however it is encoded and wherever the stream is split."""

import base64
import json
import time
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.model.masking import SHORTEST, Mask

TOKEN = "s3cr3t/Tok=en&<1>"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----\n"

# few letters, so that secrets repeat, overlap, contain one another and meet the labels
narrow = st.text("ab]\n [s", min_size=0, max_size=40)
wide = st.text(max_size=40)
values = st.one_of(
    st.text("ab]\n [s", min_size=1, max_size=12),
    st.text(min_size=1, max_size=12),
    st.sampled_from(["[secret A]", "secret", "[secret]", "***", "]abab", "ab[s", "aaaaa", "abab", "é€😀é"]),
)
secrets = st.dictionaries(st.sampled_from(["A", "B", "C", "TOKEN"]), values, max_size=4)


@st.composite
def said(draw: st.DrawFn) -> tuple[dict[str, str], str]:
    """Secrets, and a text with some of them in it."""
    known = draw(secrets)
    pieces = draw(st.lists(st.one_of(narrow, wide, st.sampled_from([*known.values(), ""])), max_size=8))
    return known, "".join(pieces)


def maskable(known: dict[str, str]) -> list[str]:
    return [value for value in known.values() if len(value.strip()) >= SHORTEST]


def streamed(mask: Mask, chunks: list[bytes]) -> bytes:
    stream = mask.stream()
    return b"".join([*(stream.feed(chunk) for chunk in chunks), stream.close()])


def cut(content: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(content), *(place % (len(content) + 1) for place in places)})
    return [content[start:end] for start, end in pairwise(ends)]


@given(said())
@example(({"A": "abcdef", "B": "]xyz"}, "abcdefxyz"))
@example(({"A": "abcd", "B": "x[secret A]y"}, "xabcdy"))
def test_no_secret_is_left(known_and_text: tuple[dict[str, str], str]) -> None:
    known, text = known_and_text

    masked = Mask.of(known).text(text)

    assert [value for value in maskable(known) if value in masked] == []


@given(said(), st.lists(st.integers(0, 1000), max_size=20))
def test_a_stream_says_the_same_wherever_it_is_cut(known_and_text: tuple[dict[str, str], str], at: list[int]) -> None:
    known, text = known_and_text
    mask = Mask.of(known)

    assert streamed(mask, cut(text.encode(), at)) == mask.text(text).encode()


@given(said())
def test_a_stream_of_single_bytes_says_the_same(known_and_text: tuple[dict[str, str], str]) -> None:
    known, text = known_and_text
    mask = Mask.of(known)

    assert streamed(mask, [bytes([byte]) for byte in text.encode()]) == mask.text(text).encode()


@given(said())
def test_masking_twice_changes_nothing_more(known_and_text: tuple[dict[str, str], str]) -> None:
    known, text = known_and_text
    mask = Mask.of(known)

    assert mask.text(mask.text(text)) == mask.text(text)


@given(st.text(st.characters(), max_size=200), st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=9))
def test_what_has_no_secret_in_it_is_unchanged(text: str, content: bytes, at: list[int]) -> None:
    """Lone surrogates and bytes that are no UTF-8 pass too."""
    mask = Mask.of({"A": "a value that no test makes", "B": "éèê that neither\nnor this"})

    assert mask.text(text) == text
    assert streamed(mask, cut(content, at)) == content


@given(st.binary(max_size=60), st.binary(max_size=60), st.lists(st.integers(0, 300), max_size=9))
def test_bytes_that_are_no_text_do_not_hide_a_secret(before: bytes, after: bytes, at: list[int]) -> None:
    masked = streamed(Mask.of({"T": TOKEN}), cut(before + TOKEN.encode() + after, at))

    assert masked == before + b"[secret T]" + after


@pytest.mark.parametrize(
    "spelt",
    [
        TOKEN,
        quote(TOKEN, safe=""),
        quote(TOKEN),
        quote_plus(TOKEN),
        json.dumps(TOKEN)[1:-1],
        TOKEN.replace("/", r"\/"),
        r"s3cr3t/Tok=en\u0026\u003c1\u003e",
        base64.b64encode(TOKEN.encode()).decode(),
        base64.b64encode(TOKEN.encode()).decode().rstrip("="),
        base64.urlsafe_b64encode(TOKEN.encode()).decode(),
        base64.b64encode(f"{TOKEN}\n".encode()).decode(),
    ],
)
def test_common_spellings_are_masked(spelt: str) -> None:
    assert Mask.of({"TOKEN": TOKEN}).text(f"<{spelt}>") == "<[secret TOKEN]>"


LONG_TOKEN = "sk-Live/0123456789+abcdef?~"


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_of_more_than_the_secret_is_masked(before: int, encode: Callable[[bytes], bytes]) -> None:
    said = encode(b"x" * before + LONG_TOKEN.encode() + b" and more").decode()

    masked = Mask.of({"TOKEN": LONG_TOKEN}).text(said)

    assert "[secret TOKEN]" in masked
    assert LONG_TOKEN[4:-4].encode() not in base64.b64decode(masked.replace("[secret TOKEN]", "") + "===", b"-_")
    assert len(masked) < len(said)


@pytest.mark.parametrize(
    "spelt",
    [
        LONG_TOKEN.encode().hex(),
        LONG_TOKEN.encode().hex().upper(),
        LONG_TOKEN.upper(),
        LONG_TOKEN.lower(),
        LONG_TOKEN.encode("utf-16-le").decode(),
        LONG_TOKEN.encode("utf-16-be").decode(),
    ],
)
def test_spellings_of_a_long_secret_are_masked(spelt: str) -> None:
    mask = Mask.of({"TOKEN": LONG_TOKEN})

    assert mask.text(f"a {spelt} b").replace("\0", "") == "a [secret TOKEN] b"
    assert streamed(mask, [f"a {spelt} b".encode()]).replace(b"\0", b"") == b"a [secret TOKEN] b"


@pytest.mark.parametrize("spelt", [LONG_TOKEN[::-1], " ".join(LONG_TOKEN)])
def test_spellings_that_are_not_promised_pass(spelt: str) -> None:
    """The documents say so: whoever has a secret can always spell it in another way."""
    assert Mask.of({"TOKEN": LONG_TOKEN}).text(spelt) == spelt


def test_a_short_secret_is_not_looked_for_in_capitals() -> None:
    assert Mask.of({"MODE": "postgres"}).text("POSTGRES") == "POSTGRES"


def test_letters_of_any_language_are_masked_in_json() -> None:
    mask = Mask.of({"P": 'pässwörd"€'})

    assert mask.text(json.dumps(['pässwörd"€'])) == '["[secret P]"]'
    assert mask.text(json.dumps(['pässwörd"€'], ensure_ascii=False)) == '["[secret P]"]'


def test_a_secret_of_many_lines_is_masked_whole_and_line_by_line() -> None:
    mask = Mask.of({"KEY": KEY})

    assert mask.text(f"a\n{KEY}b") == "a\n[secret KEY]b"
    assert mask.text("x kqhkiG9w0BAQEF y") == "x [secret KEY] y"
    assert mask.text(KEY.replace("\n", "\r\n")) == "[secret KEY]\r\n" * 4
    assert mask.text(json.dumps(KEY)) == '"[secret KEY]"'


def test_base64_that_was_wrapped_is_masked_line_by_line() -> None:
    wrapped = base64.encodebytes(KEY.encode() * 2).decode()

    assert Mask.of({"KEY": KEY * 2}).text(wrapped) == "[secret KEY]\n" * wrapped.count("\n")


def test_the_longest_secret_names_the_hole_and_overlaps_leave_nothing() -> None:
    mask = Mask.of({"SHORT": "abcd", "LONG": "abcdefgh", "NEXT": "ghijkl"})

    assert mask.text("abcdefgh") == "[secret LONG]"
    assert mask.text("abcdefghijkl.") == "[secret LONG]."
    assert mask.text("abcdabcd") == "[secret SHORT][secret SHORT]"
    assert streamed(mask, [b"abcd", b"efg", b"hij", b"kl."]) == b"[secret LONG]."


def test_short_and_empty_values_are_not_masked_and_the_short_ones_named() -> None:
    mask = Mask.of({"PIN": "123", "BLANK": "  x  ", "NONE": "", "OK": "1234"})

    assert mask.unmasked == ("BLANK", "PIN")
    assert mask.text("123   x   1234") == "123   x   [secret OK]"


def test_one_name_may_have_several_values() -> None:
    assert Mask.of({"KEY": "first-one"}, {"KEY": "second-one"}).text("second-one first-one") == (
        "[secret KEY] [secret KEY]"
    )


def test_bytes_of_the_host_that_are_no_text_are_masked() -> None:
    """`os.environ` gives them as lone surrogates; `LineSplitter` makes them U+FFFD."""
    mask = Mask.of({"K": "abc\udcff\udc80def"})

    assert mask.text("<abc\udcff\udc80def> <abc\ufffd\ufffddef>") == "<[secret K]> <[secret K]>"
    assert streamed(mask, [b"<abc\xff", b"\x80def>"]) == b"<[secret K]>"


def test_no_value_is_in_the_repr() -> None:
    assert TOKEN not in repr(Mask.of({"TOKEN": TOKEN}))


def test_a_mask_without_secrets_changes_nothing() -> None:
    assert Mask().text("abc") == "abc"
    assert streamed(Mask(), [b"a", b"bc"]) == b"abc"


def test_only_what_may_become_a_secret_is_held_back() -> None:
    stream = Mask.of({"T": "token-123"}).stream()

    assert stream.feed(b"ready\n") == b"ready\n"
    assert stream.feed(b"token-12") == b""
    assert stream.feed(b"4 tok") == b"token-124 "
    assert stream.close() == b"tok"


def test_a_secret_that_is_whole_at_the_end_is_masked_though_a_longer_one_was_awaited() -> None:
    stream = Mask.of({"A": "abcd", "B": "abcdefgh"}).stream()

    assert stream.feed(b"abcdef") == b""
    assert stream.close() == b"[secret A]ef"


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        ("a" * 100, b"a"),
        ("ab" * 50, b"ab"),
        ("a" * 99 + "b", b"a"),
        (KEY * 40, KEY.encode() * 39 + b"." * 20_000),
        (TOKEN, TOKEN.encode()),
    ],
)
def test_ten_megabytes_take_linear_time(value: str, pattern: bytes) -> None:
    mask = Mask.of({"V": value})
    content = (pattern * (10 * 2**20 // len(pattern) + 1))[: 10 * 2**20]
    chunks = [content[start : start + 4096] for start in range(0, len(content), 4096)]

    began = time.process_time()
    masked = streamed(mask, chunks)

    assert value.encode() not in masked
    assert time.process_time() - began < 40  # about 1 to 4 here; quadratic would be hours
