"""Find what a killed Shoal left: sessions without a recorded end, running sandboxes, and trials of the host."""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Broken, ShoalError
from shoal.limits.cgroups import is_left_on_disk
from shoal.limits.kind import kill_each
from shoal.store.fold import fold
from shoal.store.paths import TRIAL, StatePaths
from shoal.store.reader import read_unended
from shoal.store.run_state import SessionState
from shoal.workspaces.mount import list_mounts, unmount
from shoal.workspaces.remove import remove_all

PROGRAM = "bwrap"
SECONDS = 10.0
PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A session without a recorded end, and its step."""

    step: str
    session: SessionState


def list_unfinished(paths: StatePaths, run: str) -> list[Unfinished]:
    """List the sessions of *run* whose work may not have been imported yet."""
    state = fold(read_unended(paths, run)).runs.get(run)
    return [
        Unfinished(step.step, session)
        for step in (state.steps.values() if state else ())
        for session in step.sessions.values()
        if session.result is None
    ]


def has_unfinished(paths: StatePaths, run: str) -> bool:
    """Return whether *run* may have left work, also if its ledger cannot be read."""
    try:
        return bool(list_unfinished(paths, run))
    except ShoalError:
        return True


async def end_survivors(session_dir: Path) -> None:
    """Kill the sandbox that shows *session_dir*, and wait until it is gone; raise `Broken` if it stays.

    Nobody inside can change its first process, so that process's arguments are reliable.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            while find_sandboxes(session_dir):
                kill_each(lambda: find_sandboxes(session_dir))
                await asyncio.sleep(PAUSE)
            return
    raise Broken(f"a sandbox of a killed run that shows {session_dir} cannot be killed")


def find_sandboxes(session_dir: Path) -> list[int]:
    """Find the processes of bubblewrap whose arguments show something in *session_dir*."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _shows(name, os.fsencode(session_dir))]


def _shows(pid: str, session_dir: bytes) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        if Path(f"/proc/{pid}/exe").readlink().name.removesuffix(" (deleted)") != PROGRAM:
            return False
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return any(word == session_dir or word.startswith(session_dir + b"/") for word in words)
    return False


async def sweep_trials(paths: StatePaths) -> None:
    """End and remove what dead processes left of their trials of the host."""
    for trial in paths.session_dirs.glob(f"{TRIAL}*"):
        if is_left_on_disk(trial.name.removeprefix(TRIAL)):
            await end_survivors(trial)
            for place in list_mounts(trial):
                unmount(place)
            await remove_all(trial)
