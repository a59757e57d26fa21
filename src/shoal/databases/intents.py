"""What runs have on database servers, noted before it is created, so that the next start can drop it."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths

TAG = re.compile(r"[0-9a-f]{8}")
ENDING = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseIntent:
    """What one process of a run has: its sockets, and on the server a database and roles that are named by *tag*.

    *server* describes the user's server, without a password; it is empty for one of our own.
    """

    run: str
    tag: str
    sockets: str
    server: str = ""

    @property
    def name(self) -> str:
        """The name of its database and of its group of roles, with which the names of its roles begin."""
        return f"shoal_{self.tag}"

    def folder(self, paths: StatePaths) -> Path:
        """Return the folder for the files of its own server."""
        return paths.databases / self.tag


def note_intent(paths: StatePaths, intent: DatabaseIntent) -> None:
    """Note *intent*, so that it survives a kill."""
    paths.databases.mkdir(mode=0o700, exist_ok=True)
    target = _file(paths, intent)
    draft = target.with_suffix(".part")
    draft.write_text(json.dumps(asdict(intent)))
    draft.replace(target)


def forget_intent(paths: StatePaths, intent: DatabaseIntent) -> None:
    """Remove the files of *intent*, and then the note of it; what is on a server was dropped before."""
    shutil.rmtree(intent.folder(paths), ignore_errors=True)
    shutil.rmtree(intent.sockets, ignore_errors=True)
    _file(paths, intent).unlink(missing_ok=True)


def list_abandoned(paths: StatePaths, own_run: str) -> Iterator[DatabaseIntent]:
    """List what no live run has; *own_run*, whose lock is ours, has just begun: what it has is of a killed process."""
    for file in sorted(paths.databases.glob(f"*{ENDING}")):
        intent = _read(file)
        if intent is not None and (intent.run == own_run or not is_locked(paths.run_lock(intent.run))):
            yield intent


def _file(paths: StatePaths, intent: DatabaseIntent) -> Path:
    return paths.databases / f"{intent.tag}{ENDING}"


def _read(file: Path) -> DatabaseIntent | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        intent = DatabaseIntent(**json.loads(file.read_text()))
        # both become parts of paths that are removed
        if TAG.fullmatch(intent.tag) and os.path.basename(intent.sockets) == f"db-{intent.tag}":  # noqa: PTH119
            return intent
    return None
