"""What the demonstration says around its run."""

import shlex
from pathlib import Path

from shoal.cli.plain import plain
from shoal.errors import Unavailable


def greeting(folder: Path) -> str:
    """Say what is about to be seen."""
    return f"five scripted agents at once on a scratch repository, {plain(str(folder))}\n"


def fallback_note(refused: Unavailable) -> str:
    """Say that the wall is a weaker one, and why."""
    return f"{refused}. The demonstration goes on behind Landlock, which holds less"


def parting(folder: Path, *, is_kept: bool) -> str:
    """Say how to be rid of it."""
    if not is_kept:
        return "\nthe scratch repository was removed"
    return f"\nwhen you have seen enough: rm -rf {shlex.quote(plain(str(folder)))}"
