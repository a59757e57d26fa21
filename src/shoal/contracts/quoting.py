"""Quote what agents wrote in messages: escaped, and cut to what a person reads."""

from collections.abc import Callable, Sequence

NAMED = 5
NAME_CHARS = 120
LINES = 20
LINE_CHARS = 300
MESSAGE_CHARS = 300


def list_paths(paths: Sequence[str], masked: Callable[[str], str] = str) -> str:
    """List some of *paths*, *masked* before they are cut, and how many more there are."""
    shown = ", ".join(escape_text(masked(path), NAME_CHARS) for path in paths[:NAMED])
    return shown if len(paths) <= NAMED else f"{shown} and {len(paths) - NAMED} more"


def quote_output(output: str) -> str:
    """Quote the last lines of *output*, so that none of them looks like ours."""
    lines = [line for line in output.splitlines() if line.strip()]
    return "".join(f"\n> {escape_text(line, LINE_CHARS)}" for line in lines[-LINES:])


def escape_text(text: str, most: int) -> str:
    """Escape control and bidirectional characters, and cut the text."""
    safe = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: most + 1])
    return safe if len(safe) <= most else f"{safe[:most]}…"
