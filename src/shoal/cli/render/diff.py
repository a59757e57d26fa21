"""A patch as it is shown at a terminal."""

from collections.abc import Iterator, Sequence

from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.columns import some

COLOURS = (("+++", "bold"), ("---", "bold"), ("+", "good"), ("-", "bad"), ("@@", "mark"), ("diff ", "bold"))


def patch_lines(patch: bytes, paint: Paint) -> Iterator[str]:
    """Give the patch line by line, escaped and then coloured."""
    for line in patch.decode(errors="surrogateescape").removesuffix("\n").split("\n"):
        shown = plain(line, keep="\t")
        colour = next((colour for start, colour in COLOURS if shown.startswith(start)), None)
        yield paint(shown, colour) if colour else shown


def warning(names: Sequence[str], paint: Paint) -> str:
    """Name the changed files that could run programs on the reader's machine."""
    return f"{paint('warning:', 'warn')} look before you merge, it changes what runs on your machine: {some(names)}"


def nothing(session: str, raw: str | None) -> str:
    """Say that there is nothing to show; work that could not be brought in lies in *raw*."""
    if raw:
        return f"shoal: nothing of {plain(session)} is on a branch; its raw files are still in {plain(raw)}"
    return f"shoal: {plain(session)} changed nothing"
