"""Others' text reaches a terminal only as visible characters."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.output import escape


@given(st.text(st.characters()))
def test_nothing_hidden_is_left(text: str) -> None:
    shown = escape(text)

    assert shown.isprintable()
    assert not [sign for sign in shown if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")]


@given(st.text(st.characters()))
def test_what_was_made_plain_stays_as_it_is(text: str) -> None:
    assert escape(escape(text)) == escape(text)


@given(st.text(st.characters(categories=("Lu", "Ll", "Nd", "Po"), max_codepoint=0x2FF)))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert escape(text) == text


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("\x1b]52;c;eA==\x07", r"\x1b]52;c;eA==\x07"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("a\rb\x08\x7f", r"a\x0db\x08\x7f"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
        ("\U000e0041", r"\U000e0041"),
        ("\u3164", r"\u3164"),
        ("x\ufe0f", r"x\ufe0f"),
        (b"\xff\x1b".decode(errors="surrogateescape"), r"\xff\x1b"),
        ("Größe 日本", "Größe 日本"),
    ],
)
def test_a_trick_is_shown(hidden: str, shown: str) -> None:
    assert escape(hidden) == shown


def test_signs_may_be_kept() -> None:
    assert escape("a\tb\nc", keep="\t") == "a\tb\\x0ac"
