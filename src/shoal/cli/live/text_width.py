"""Measure text in terminal cells, and shorten it between words."""

import re
from collections.abc import Iterable, Sequence

from rich.cells import get_character_cell_size

from shoal.cli.output import flat

CUT = "…"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WORDS = re.compile(r"( *)([^ ]+)")
LEAST_PATH = 8
MAX_CHARS = 1000


def width(text: str) -> int:
    """Count the cells of *text*, character by character: no terminal takes more for a sequence of them."""
    if "\x1b" in text:  # our own colours: others' text is escaped
        text = COLOUR.sub("", text)
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def clean(text: str) -> str:
    """Put untrusted text on one line, escaped, as much of it as any terminal shows."""
    return flat(text[:MAX_CHARS])


def pad(text: str, room: int, *, is_right: bool = False) -> str:
    """Fill *text* with blanks up to *room* cells."""
    blanks = " " * (room - width(text))
    return f"{blanks}{text}" if is_right else f"{text}{blanks}"


def fit(text: str, room: int) -> str:
    """Shorten clean text to *room* cells: by whole words, and within a word only with `…`."""
    if width(text) <= room:
        return text
    shown = ""
    for word in text.split(" "):
        before = f"{shown} " if shown else ""
        if width(before) + width(word) + 2 <= room:
            shown = f"{before}{word}"
            continue
        return before + _fit_word(word, room - width(before), is_first=not shown)
    return shown


def _fit_word(word: str, room: int, *, is_first: bool) -> str:
    if "/" in word and room >= LEAST_PATH:
        return _fit_path(word, room)
    return take(word, room - 1) + CUT if is_first and room > 1 else CUT[:room]


def _fit_path(path: str, room: int) -> str:
    """Keep the end of a path, starting at a slash if that fits."""
    start, cells = len(path), 0
    while start and cells + width(path[start - 1]) <= room - 1:
        start -= 1
        cells += width(path[start])
    if start == 0:
        return path
    slash = path.find("/", start)
    return CUT + path[slash if 0 <= slash < len(path) - 1 else start :]


def take(text: str, room: int) -> str:
    """Take as many characters as fit into *room* cells."""
    cells = 0
    for end, char in enumerate(text):
        cells += get_character_cell_size(char)
        if cells > room:
            return text[:end]
    return text


def wrap(text: str, room: int, indent: str = "") -> list[str]:
    """Break *text* between words into lines of at most *room* cells; all but the first begin with *indent*."""
    if width(text) <= room:
        return [text]
    lines: list[str] = []
    line = text[: len(text) - len(text.lstrip(" "))]
    is_empty = True
    for gap, word in WORDS.findall(text):
        if not is_empty and width(line) + len(gap) + width(word) > room:
            lines.append(line)
            line, is_empty = indent, True
        line = f"{line}{'' if is_empty else gap}{word}"
        is_empty = False
        while width(line) > room:  # a single word is longer than a line
            head = take(line, room - 1)
            lines.append(head + CUT)
            line = indent + CUT + line[len(head) :]
    return [*lines, line]


def join_fitting(parts: Iterable[str], gap: str, room: int) -> str:
    """Join the parts that fit into *room* cells, the first ones first."""
    shown = ""
    for part in parts:
        joined = f"{shown}{gap}{part}" if shown else part
        if part and width(joined) <= room:
            shown = joined
    return shown


def column(cells: Sequence[str], most: int) -> int:
    """Return the width of a column for these cells."""
    return min(most, max(map(width, cells), default=0))
