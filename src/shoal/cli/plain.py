"""Text of others made harmless: what would move a cursor, turn text round or hide in it is shown as an escape."""

import re

# Letters and marks by their category, but drawn as nothing: fillers, joiners and variation selectors.
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
FIRST_BYTE, LAST_BYTE = 0xDC80, 0xDCFF


def plain(text: str, *, keep: str = "") -> str:
    r"""Escape every sign that is not seen as itself, as `\xNN`, `\uNNNN` or `\UNNNNNNNN`; those in *keep* stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(sign if sign in keep or _is_seen(sign) else _escaped(ord(sign)) for sign in text)


def _is_seen(sign: str) -> bool:
    return sign.isprintable() and INVISIBLE.match(sign) is None


def _escaped(code: int) -> str:
    if FIRST_BYTE <= code <= LAST_BYTE:
        code -= 0xDC00  # a byte that was no text, carried through a string by `surrogateescape`
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
