"""Columns, counts, durations and sizes as text."""

from collections.abc import Iterable, Sequence

from shoal.cli.output import Paint, escape
from shoal.model.status import Status

GAP = "  "
SHOWN = 20
TONES = {
    Status.SUCCEEDED: "good",
    Status.NO_CHANGES: "good",
    Status.PENDING: "dim",
    Status.RUNNING: "mark",
    Status.PAUSED: "warn",
    Status.CANCELLED: "warn",
    Status.SKIPPED: "warn",
    Status.DEGRADED: "warn",
}


def tone(status: Status) -> str:
    """Return the colour of a status."""
    return TONES.get(status, "bad")


def columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad every cell to the width of its column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]


def join_cells(cells: Iterable[str]) -> str:
    """Make one line of padded cells."""
    return GAP.join(cells).rstrip()


def heading(cells: Iterable[str], paint: Paint) -> str:
    """Make the first line of a table."""
    return paint(join_cells(cells), "dim")


def count(number: int, noun: str) -> str:
    """Count things: `1 file`, `2 files`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def seconds(length: float) -> str:
    """Format a duration."""
    if length < 60:
        return f"{length:.1f} s"
    minutes, rest = divmod(round(length), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def ago(length: float) -> str:
    """Format roughly how long ago something was."""
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if length >= unit:
            return f"{count(int(length // unit), name)} ago"
    return "just now"


def beginning(text: str, most: int) -> str:
    """Shorten untrusted text, escaped, to at most *most* characters."""
    shown = escape(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def size(number: int) -> str:
    """Format a number of bytes."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def some(names: Sequence[str], most: int = SHOWN) -> str:
    """List the first *names*, escaped, and count the rest."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(escape, names[:most])) + more
