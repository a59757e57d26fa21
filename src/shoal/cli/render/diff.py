"""A patch as it is shown at a terminal."""

import re
from collections.abc import Iterator, Sequence

from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.columns import some

HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
COLOURS = {"+": "good", "-": "bad"}


def patch_lines(patch: bytes, paint: Paint) -> Iterator[str]:
    """Give the patch line by line, escaped and then coloured.

    The lines of a hunk are counted: a file that has `++ b/other` in it must not look like the head of another.
    """
    old = new = 0
    for line in patch.decode(errors="surrogateescape").removesuffix("\n").split("\n"):
        shown = plain(line, keep="\t")
        if old > 0 or new > 0:
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
            colour = COLOURS.get(line[:1])
        elif (found := HUNK.match(line)) is not None:
            old, new = (1 if number is None else int(number) for number in found.groups())
            colour = "mark"
        else:
            colour = "bold" if line.startswith(("diff ", "--- ", "+++ ")) else None
        yield paint(shown, colour) if colour else shown


def warning(names: Sequence[str], paint: Paint) -> str:
    """Name the changed files that could run programs on the reader's machine."""
    return f"{paint('warning:', 'warn')} look before you merge, it changes what runs on your machine: {some(names)}"


def nothing(session: str, raw: str | None) -> str:
    """Say that there is nothing to show; work that could not be brought in lies in *raw*."""
    if raw:
        return f"shoal: nothing of {plain(session)} is on a branch; its raw files are still in {plain(raw)}"
    return f"shoal: {plain(session)} changed nothing"


def same(one: str, other: str) -> str:
    """Say that two sessions came to the same files."""
    return f"shoal: there is no difference between {plain(one)} and {plain(other)}"


def left_out(sessions: Sequence[str]) -> str:
    """Say whose work is not shown, because it cannot be had together with the rest."""
    return f"shoal: left out, for they conflict with what is shown: {some(sessions)}"
