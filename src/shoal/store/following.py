"""Follow a ledger that others write: whether a run is owned, whether anything is new, and a pause until it may be."""

import contextlib
import os
import time

from shoal.errors import Broken
from shoal.store.choice import open_chosen, read_choice
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths


def is_owned(paths: StatePaths, run: str) -> bool:
    """Return whether a process of this machine owns *run*, or one of another that shares the ledger."""
    return is_locked(paths.run_lock(run)) or run in find_live(paths)


def find_live(paths: StatePaths) -> dict[str, str]:
    """Find the runs that processes of any machine own, with their machines; none where the ledger is a file of ours."""
    choice = read_choice(paths)
    return {} if choice is None else open_chosen(choice).find_live()


def pause(paths: StatePaths, seconds: float) -> None:
    """Wait up to *seconds*, or until a server says that something was written."""
    choice = None
    with contextlib.suppress(Broken):
        choice = read_choice(paths)
    if choice is None:
        time.sleep(seconds)
    else:
        open_chosen(choice).wait(seconds)


def has_session_log(paths: StatePaths, session: str) -> bool:
    """Return whether the log of *session* may still exist."""
    return read_choice(paths) is not None or paths.session_db(session).exists()


def read_stamp(paths: StatePaths) -> tuple[int, ...]:
    """Return a value that changes whenever the ledger does."""
    if (choice := read_choice(paths)) is not None:
        return (open_chosen(choice).read_last(),)
    found: list[int] = []
    for path in (paths.ledger, paths.ledger.with_name(f"{paths.ledger.name}-wal")):
        with contextlib.suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            found += (status.st_mtime_ns, status.st_size, status.st_ino)
    return tuple(found)
