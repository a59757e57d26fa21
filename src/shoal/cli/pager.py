"""Long text for a person: page by page, by the pager that git would take, where there is a terminal."""

import os
from collections.abc import Iterable

from shoal.cli import output
from shoal.proc.pager import paged

PLAIN = ("", "cat")
HABITS = {"LESS": "FRX", "LV": "-c"}
"""What git tells pagers unless a person has told them something else: to end on one page, and to show colours."""


def show(lines: Iterable[str]) -> None:
    """Show escaped *lines* to a person; the pager of a repository's configuration is never asked for."""
    told = list(lines)
    command = os.environ.get("GIT_PAGER", os.environ.get("PAGER", "less"))
    if command not in PLAIN:
        encoded = (f"{line}\n".encode(errors="backslashreplace") for line in told)
        output.flush()
        if paged(encoded, command, HABITS | os.environ):
            return
    output.say("\n".join(told))
