"""Values put into commands: a shell is handed them as parameters, so that none of them is read as a command."""

import re
from collections.abc import Callable, Sequence

Render = Callable[[str], str]

SHELL = ("/bin/sh", "-c")
SHELLS = frozenset({"sh", "bash", "rbash", "dash", "zsh", "ksh", "mksh", "yash", "ash", "busybox"})
PLACE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
QUOTED = {"": '"${{{}}}"', '"': "${{{}}}", "'": """'"${{{}}}"'"""}
"""How a shell is given a value as one word, by the quotes that the place stands in."""

_OPTIONS = re.compile(r"-[A-Za-z]+")
_NAMING = ("--rcfile", "--init-file")
"""What takes the next word for a name, as `-o` and `-O` do."""


def filled(argv: Sequence[str], render: Render) -> tuple[str, ...]:
    """Fill in the words of a command; the script of a shell among them takes its values as further parameters."""
    at = _script_at(argv)
    if at is None:
        return tuple(render(word) for word in argv)
    before, rest = (render(word) for word in argv[:at]), [render(word) for word in argv[at + 1 :]] or ["sh"]
    script, values = parameterised(argv[at], render, first=len(rest))
    return (*before, script, *rest, *values)


def parameterised(script: str, render: Render, *, first: int = 1) -> tuple[str, tuple[str, ...]]:
    """Give a shell's text with parameters in its places, numbered from *first* on, and their values."""
    values: list[str] = []
    text, quote, end = "", "", 0
    for place in PLACE.finditer(script):
        between = script[end : place.start()]
        quote, end = _quote_after(between, quote), place.end()
        text += between + QUOTED[quote].format(first + len(values))
        values.append(render(place[0]))
    return text + script[end:], tuple(values)


def script_of(argv: Sequence[str]) -> str:
    """Give the text that a shell in *argv* reads as its script; empty where there is none."""
    at = _script_at(argv)
    return "" if at is None else argv[at]


def _script_at(argv: Sequence[str]) -> int | None:
    """Find the word that a shell reads as its script: `bash -o pipefail -c SCRIPT`, also behind `env` or `timeout`."""
    shells = (at for at, word in enumerate(argv) if word.rpartition("/")[2] in SHELLS)
    return next((found for at in shells if (found := _script_after(argv, at + 1)) is not None), None)


def _script_after(argv: Sequence[str], at: int) -> int | None:
    """Go through a shell's options from *at* on: the first word behind them is its script, if `-c` is one of them."""
    is_script = False
    while at < len(argv) and argv[at].startswith(("-", "+")):
        word, at = argv[at], at + 1
        if word in ("-", "--"):
            break
        is_script = is_script or (_OPTIONS.fullmatch(word) is not None and "c" in word)
        takes_name = word in _NAMING or (not word.startswith("--") and "o" in word.lower())
        at += takes_name and at < len(argv) and not argv[at].startswith(("-", "+"))
    return at if is_script and at < len(argv) else None


def _quote_after(text: str, quote: str) -> str:
    """Say in which quotes a shell is after *text*, when it was in *quote* before it."""
    signs = iter(text)
    for sign in signs:
        if sign == "\\" and quote != "'":
            next(signs, None)
        elif sign in "'\"" and quote in ("", sign):
            quote = "" if quote else sign
    return quote
