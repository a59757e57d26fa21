"""Parse a patch into escaped lines with their colours."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.cli.output import Paint, escape

HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
COLOURS = {"+": "good", "-": "bad"}


@dataclass(frozen=True, slots=True)
class PatchLine:
    """An escaped line, and its colour; empty for none."""

    text: str
    colour: str


def split_patch(patch: bytes) -> Iterator[PatchLine]:
    """Yield the patch line by line.

    The lines of a hunk are counted: a file that contains `++ b/other` must not look like another header.
    """
    old = new = 0
    for line in patch.decode(errors="surrogateescape").removesuffix("\n").split("\n"):
        if old > 0 or new > 0:
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
            colour = COLOURS.get(line[:1], "")
        elif (found := HUNK.match(line)) is not None:
            old, new = (1 if number is None else int(number) for number in found.groups())
            colour = "mark"
        else:
            colour = "bold" if line.startswith(("diff ", "--- ", "+++ ")) else ""
        yield PatchLine(escape(line, keep="\t"), colour)


def patch_lines(patch: bytes, paint: Paint) -> Iterator[str]:
    """Yield the patch for a terminal."""
    for line in split_patch(patch):
        yield paint(line.text, line.colour) if line.colour else line.text
