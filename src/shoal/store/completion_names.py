"""List run and session names for shell completion: reads little, imports little and never fails."""

import contextlib
import re
import sqlite3
from pathlib import Path

MAX_NAMES = 200
PLAIN = re.compile(r"[A-Za-z0-9._/+-]+")
"""Shells expand the names that they complete, so other names are left out."""
QUERIES = {
    "runs": "SELECT run FROM events GROUP BY run ORDER BY min(seq) DESC LIMIT ?",
    "sessions": "SELECT session FROM events WHERE kind = 'SessionStarted' ORDER BY seq DESC LIMIT ?",
}


def list_names(folder: Path, kind: str) -> list[str]:
    """List the latest `runs` or `sessions` of the repository of *folder*, or both for `runs+sessions`."""
    ledger = _find_ledger(folder)
    if ledger is None:
        return []
    names: list[str] = []
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_open(ledger)) as connection:
        for part in kind.split("+"):
            rows = connection.execute(QUERIES[part], (MAX_NAMES,)).fetchall() if part in QUERIES else []
            names.extend(str(name) for (name,) in rows)
    return [name for name in names if PLAIN.fullmatch(name)]


def _open(ledger: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True, timeout=0.2)


def _find_ledger(folder: Path) -> Path | None:
    """Find the ledger in *folder* or above it; that of a linked worktree is in the main checkout."""
    for place in (folder, *folder.parents):
        for home in (place, *_main_checkout(place / ".git")):
            if (ledger := home / ".shoal" / "ledger.db").is_file():
                return ledger
    return None


def _main_checkout(link: Path) -> list[Path]:
    try:
        line = link.read_text(errors="surrogateescape") if link.is_file() else ""
    except OSError:
        return []
    gitdir = Path(line.removeprefix("gitdir: ").strip())
    return [gitdir.parents[2]] if gitdir.parent.name == "worktrees" and len(gitdir.parents) > 2 else []
