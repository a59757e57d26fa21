"""Put values into commands: a shell gets them as variables, so that none is run as code."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shoal.errors import BadInput
from shoal.model.shell_reader import read_shell_text
from shoal.model.shell_text import FILL, MASK, Context

_MARK = re.compile(r"\{\{|\{%[-+]?\s*raw\s*[-+]?%\}|\{%")
_END_RAW = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}")
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[-+]?\}\}|[()\[\]{}]|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder: its text, its position in the text without marks, and its position in the file's text."""

    text: str
    start: int
    end: int
    origin: int


@dataclass(frozen=True, slots=True)
class PlaceholderText:
    """A text without `{% raw %}` marks, and its placeholders; *statement* is where the first other `{% … %}` is."""

    text: str
    places: tuple[Placeholder, ...] = ()
    statement: int | None = None

    @property
    def masked(self) -> str:
        """Return the text with `MASK` and `FILL` for each placeholder, so that its length stays the same."""
        parts, at = [], 0
        for place in self.places:
            parts += [_without_masks(self.text[at : place.start]), MASK + FILL * (place.end - place.start - 1)]
            at = place.end
        return "".join((*parts, _without_masks(self.text[at:])))


@lru_cache(maxsize=64)
def find_placeholders(text: str) -> PlaceholderText:
    """Find the placeholders of *text*."""
    clean, at, places = "", 0, list[Placeholder]()
    while mark := _MARK.search(text, at):
        clean += text[at : mark.start()]
        if mark[0] == "{{" and (end := _end(text, mark.end())) is not None:
            place = text[mark.start() : end]
            places.append(Placeholder(place, len(clean), len(clean) + len(place), mark.start()))
            clean, at = clean + place, end
        elif mark[0] not in ("{{", "{%") and (closing := _END_RAW.search(text, mark.end())):
            clean, at = clean + text[mark.end() : closing.start()], closing.end()
        else:  # a statement, or something that the template parser refuses
            return PlaceholderText(clean + text[mark.start() :], tuple(places), mark.start())
    return PlaceholderText(clean + text[at:], tuple(places))


def _end(text: str, at: int) -> int | None:
    """Find the end of the placeholder whose expression starts at *at*."""
    depth = 0
    while token := _TOKEN.match(text, at):
        if token[0].endswith("}}") and len(token[0]) <= 3 and token[0][0] in "}-+":
            if not depth:
                return token.end()
            depth, at = depth - 1, token.start() + token[0].index("}") + 1
            continue
        depth += (token[0] in "([{") - (token[0] in ")]}")
        at = token.end()
    return None


def _without_masks(text: str) -> str:
    return text.replace(MASK, "x").replace(FILL, "x")


Render = Callable[[str], str]

SHELL = ("/bin/sh", "-c")
SHELLS = frozenset({"sh", "bash", "rbash", "dash", "zsh", "ksh", "mksh", "yash", "ash", "busybox"})
QUOTED = {
    Context.WORD: '"${{{}}}"',
    Context.DOUBLE: "${{{}}}",
    Context.SINGLE: """'"${{{}}}"'""",
    Context.HERE: "${{{}}}",
    Context.NUMBER: "(${{{}}})",
}
"""How to write a variable as one word for a shell, by the quoting of the placeholder."""
VARIABLE = "shoal_value_{}"
LONGEST_WORD = 130_000
"""Bytes of one word of a command: Linux takes 128 KiB."""
PART_CHARS = LONGEST_WORD // 4
MOST_BYTES = 1536 * 1024
"""Bytes of all values: Linux takes 2 MiB of words and variables where a stack may have 8."""

_OPTIONS = re.compile(r"-[A-Za-z]+")
_NAMING = ("--rcfile", "--init-file")
"""Options that take the next word as a name, like `-o` and `-O`."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def fill_argv(argv: Sequence[str], render: Render) -> tuple[str, ...]:
    """Fill in the words of a command; a shell script among them gets its values as variables."""
    at = script_index(argv)
    if at is None:
        return tuple(_word(word, render) for word in argv)
    before, (name, *rest) = (_word(word, render) for word in argv[:at]), argv[at + 1 :] or ("sh",)
    script, values = parameterise(argv[at], render)
    return (*before, script, _word(name, render), *values, *(_word(word, render) for word in rest))


def parameterise(script: str, render: Render) -> tuple[str, tuple[str, ...]]:
    """Return a shell command with variables in place of its placeholders, and the parameters with their values.

    Raises `BadInput` for a placeholder that may not stay one value, and for a value that no shell can hold.
    """
    placed = find_placeholders(script)
    if placed.statement is not None:
        raise BadInput("`{% … %}` cannot be used in a shell's text")
    if not placed.places:
        return placed.text, ()
    read = read_shell_text(placed.masked)
    edits = [(edit.start, edit.end, edit.text) for edit in read.edits]
    values: list[str] = []
    for place in placed.places:
        reading = read.readings[place.start]
        if reading.context is None:
            raise BadInput(f"no value can be put into a shell's text at `{place.text}`: {reading.refusal}")
        edits.append((place.start, place.end, _quote(reading.context, len(values) + 1)))
        if reading.context is not Context.COMMENT:
            values.append(_check_value(render(place.text), place.text, reading.context))
    beginning, parameters = _beginning(values)
    return beginning + _apply_edits(placed.text, edits), parameters


def write_out(script: str, render: Render) -> str:
    """Return a shell command with its values filled in, for a person to read."""
    placed = find_placeholders(script)
    return _apply_edits(placed.text, [(place.start, place.end, render(place.text)) for place in placed.places])


def script_index(argv: Sequence[str]) -> int | None:
    """Find the word that a shell runs as its script: `bash -o pipefail -c SCRIPT`, also after `env` or `timeout`."""
    shells = (at for at, word in enumerate(argv) if word.rpartition("/")[2] in SHELLS)
    return next((found for at in shells if (found := _script_after(argv, at + 1)) is not None), None)


def _script_after(argv: Sequence[str], at: int) -> int | None:
    """Skip a shell's options from *at* on: the first word after them is its script, if `-c` is among them."""
    is_script = False
    while at < len(argv) and argv[at].startswith(("-", "+")):
        word, at = argv[at], at + 1
        if word in ("-", "--"):
            break
        is_script = is_script or (_OPTIONS.fullmatch(word) is not None and "c" in word)
        takes_name = word in _NAMING or (not word.startswith("--") and "o" in word.lower())
        at += takes_name and at < len(argv) and not argv[at].startswith(("-", "+"))
    return at if is_script and at < len(argv) else None


def _quote(context: Context, number: int) -> str:
    return "" if context is Context.COMMENT else QUOTED[context].format(VARIABLE.format(number))


def _apply_edits(text: str, edits: list[tuple[int, int, str]]) -> str:
    """Apply *edits*, which do not overlap, to *text*."""
    made, at = "", 0
    for start, end, written in sorted(edits):
        made, at = made + text[at:start] + written, end
    return made + text[at:]


def _beginning(values: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return a first line that reads the values from the shell's parameters; a large value comes in parts.

    The author's own parameters follow, which `set`, `shift` and functions do not affect.
    """
    parameters: list[str] = []
    assignments = ""
    for number, value in enumerate(values, 1):
        parts = [value[at : at + PART_CHARS] for at in range(0, len(value), PART_CHARS)] or [""]
        taken = "".join(f"${{{len(parameters) + index}}}" for index in range(1, len(parts) + 1))
        assignments += f"{VARIABLE.format(number)}={taken} "
        parameters += parts
    if sum(len(value.encode(errors="replace")) for value in values) > MOST_BYTES:
        raise BadInput(f"the values in the command exceed {MOST_BYTES // 1024} KiB; pass them as files")
    return f"{assignments.rstrip()}; shift {len(parameters)}; " if values else "", tuple(parameters)


def _word(word: str, render: Render) -> str:
    """Fill in a word that no shell parses."""
    text = _check_value(render(word), word, Context.WORD)
    if len(text.encode(errors="replace")) > LONGEST_WORD:
        what = f"a word of the command would have {len(text.encode(errors='replace'))} bytes"
        raise BadInput(f"{what}; a program takes at most {LONGEST_WORD}; pass it as a file")
    return text


def _check_value(value: str, written: str, context: Context) -> str:
    """Refuse a non-number in shell arithmetic; a NUL fails the one worker that gets it."""
    if context is Context.NUMBER and not _NUMBER.fullmatch(value):
        raise BadInput(f"the value of `{written}` must be a whole number, for a shell calculates with it")
    return value
