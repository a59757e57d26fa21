"""A patch as it is shown at a terminal."""

from collections.abc import Iterator

from shoal.cli.output import Paint
from shoal.cli.plain import plain

COLOURS = (("+++", "bold"), ("---", "bold"), ("+", "good"), ("-", "bad"), ("@@", "mark"), ("diff ", "bold"))


def patch_lines(patch: bytes, paint: Paint) -> Iterator[str]:
    """Give the patch line by line, escaped and then coloured."""
    for line in patch.decode(errors="surrogateescape").removesuffix("\n").split("\n"):
        shown = plain(line, keep="\t")
        colour = next((colour for start, colour in COLOURS if shown.startswith(start)), None)
        yield paint(shown, colour) if colour else shown


def nothing(session: str) -> str:
    """Say that there is nothing to show."""
    return f"shoal: {plain(session)} changed nothing"
