"""Keep an ended agent's work as soon as that is possible: wait for what may pass, and try other things again."""

import asyncio
import contextlib
import errno
import time
from dataclasses import replace

from shoal.errors import FAULTS
from shoal.limits.disk import measure_disk
from shoal.model.events import Waiting
from shoal.proc.free_space import free_floor, room
from shoal.sessions.keep_work import KeptWork, keep_work
from shoal.sessions.policy import measure_base, own_folders
from shoal.sessions.seal import SealRequest
from shoal.sessions.worker import Session

RETRY_PAUSES, FULL_PAUSE = (0.5, 1.0, 2.0, 5.0, 10.0), 2.0
MOST_WAIT_SECONDS = 3600.0
LOOK_SECONDS = 0.5
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
OWN_PART = 0.5
MEASURE_SECONDS = 30.0


async def keep_patiently(session: Session, request: SealRequest) -> KeptWork:
    """Keep the work; try again if what prevented it may pass, unless the session is stopped meanwhile.

    A full disk is waited for, unless the agent filled it itself; that and anything else is tried again a few times.
    Later commands try again, too.
    """
    context, is_waiting = session.context, False
    end, pauses = time.monotonic() + MOST_WAIT_SECONDS, list(RETRY_PAUSES)
    try:
        while True:
            failure: Exception | None = None
            try:
                work = await keep_work(
                    context, session.workspace, session.directory, branch=session.worker.branch, request=request
                )
            except FAULTS as error:
                failure, why = error, describe_error(error)
            else:
                if not work.is_disk_full:
                    return work
                why = work.failure or ""
            is_full = failure is None or getattr(failure, "errno", None) in NO_SPACE
            # also for a repository that was renamed, until it is back
            own_bytes = await _measure_own_cause(session) if is_full else 0
            can_pass = _is_gone(session) or (is_full and not own_bytes)
            can_wait = time.monotonic() < end if can_pass else bool(pauses) and session.directory.path.exists()
            if not can_wait or session.stop.is_set():
                if failure is not None:
                    raise failure
                return _blame(work, own_bytes)
            is_waiting = True
            reason = f"the work of {session.id} cannot be kept yet: {why}"
            context.ledger.post(Waiting(run=context.run, reason=context.mask.text(reason)))
            await _pause(session, FULL_PAUSE if can_pass else pauses.pop(0), can_pass=can_pass)
    finally:
        if is_waiting:
            context.ledger.post(Waiting(run=context.run, reason=""))


def describe_error(error: Exception) -> str:
    """Say what went wrong with a session."""
    return str(error) or f"{type(error).__name__} while this session was processed"


async def _measure_own_cause(session: Session) -> int:
    """Return the size of the agent's own files if they fill the disk, else 0: to wait would be to wait for them to go.

    They do if most of what the disk lost since the agent started is in them, and the rest would fit without them.
    """
    now = room(session.directory.path)
    lost, missing = session.free_at_start - now.free_bytes, -now.spare_bytes
    try:
        async with asyncio.timeout(MEASURE_SECONDS):
            used = (await measure_disk(*own_folders(session))).bytes - measure_base(session)
    except (OSError, TimeoutError):
        return 0
    return used if used > 0 and used >= missing and used >= OWN_PART * lost else 0


def _blame(work: KeptWork, own_bytes: int) -> KeptWork:
    if not own_bytes:
        return work
    return replace(work, failure=f"{work.failure}; the agent's own files take {own_bytes / 2**20:.0f} MB of it")


def _is_gone(session: Session) -> bool:
    return not session.context.repository.git.exists()


async def _pause(session: Session, seconds: float, *, can_pass: bool) -> None:
    """Wait that long, and if it *can_pass* until the repository is there and has room; a stop ends it."""
    now = time.monotonic()
    until, end = now + seconds, now + MOST_WAIT_SECONDS
    while not session.stop.is_set() and now < end:
        is_hindered = can_pass and (_is_gone(session) or free_floor(session.context.paths.root) is not None)
        if now >= until and not is_hindered:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(session.stop.wait(), LOOK_SECONDS)
        now = time.monotonic()
