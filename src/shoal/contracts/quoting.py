"""What agents named and said, made fit for a sentence: escaped, and no more than a person reads."""

from collections.abc import Callable, Sequence

NAMED = 5
NAME_SIGNS = 120
LINES = 20
LINE_SIGNS = 300


def list_paths(paths: Sequence[str], masked: Callable[[str], str] = str) -> str:
    """List some of *paths*, *masked* before they are cut, and how many more there are."""
    shown = ", ".join(escape_text(masked(path), NAME_SIGNS) for path in paths[:NAMED])
    return shown if len(paths) <= NAMED else f"{shown} and {len(paths) - NAMED} more"


def quote_output(output: str) -> str:
    """Quote the last lines of *output*, each below the other, so that none of them passes for a word of ours."""
    lines = [line for line in output.splitlines() if line.strip()]
    return "".join(f"\n> {escape_text(line, LINE_SIGNS)}" for line in lines[-LINES:])


def escape_text(text: str, most: int) -> str:
    """Escape what would move a cursor or turn text round, and cut it."""
    safe = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[: most + 1])
    return safe if len(safe) <= most else f"{safe[:most]}…"
