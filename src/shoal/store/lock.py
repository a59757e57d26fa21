"""Locks between processes, which the kernel gives back when their holder dies."""

import asyncio
import contextlib
import fcntl
import os
import platform
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from shoal.errors import Broken

_SHORTEST, _LONGEST = 0.005, 0.05


@contextlib.contextmanager
def hold_lock_blocking(path: Path, *, shared: bool = False, timeout: float) -> Iterator[None]:
    """Hold the lock at *path*, alone or with other sharers; raise `Broken` when it does not come free in time."""
    with contextlib.ExitStack() as stack:
        for pause in _pauses(path, timeout):
            if _take(path, stack, shared=shared):
                break
            time.sleep(pause)
        yield


@contextlib.asynccontextmanager
async def hold_lock(path: Path, *, shared: bool = False, timeout: float) -> AsyncIterator[None]:
    """Hold the lock at *path* as `hold_lock_blocking` does, without keeping the loop from its work meanwhile."""
    with contextlib.ExitStack() as stack:
        for pause in _pauses(path, timeout):
            if _take(path, stack, shared=shared):
                break
            await asyncio.sleep(pause)
        yield


def is_locked(path: Path) -> bool:
    """Say whether anybody holds the lock at *path*; nothing is created.

    The question takes the lock for an instant, so that whoever wants it then must wait at least one pause.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _flock(descriptor, path, shared=False)
    finally:
        os.close(descriptor)


def _pauses(path: Path, timeout: float) -> Iterator[float]:
    """Give the pause after each attempt: the first attempt is immediate, and there is one more at the very end."""
    end = time.monotonic() + timeout
    pause = _SHORTEST
    while (left := end - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, _LONGEST)
    yield 0.0
    raise Broken(
        f"the lock {path} did not come free within {timeout:g} s: {read_holder(path)} holds it; wait for it, or end it"
    )


def read_holder(path: Path) -> str:
    """Name the process that took the lock at *path* last, and its host."""
    with contextlib.suppress(OSError):
        pid, _, host = path.read_text(errors="replace").partition("\n")[0].partition(" ")
        if pid.isdecimal():
            return f"process {pid} on {host}"
    return "another Shoal"


def _take(path: Path, stack: contextlib.ExitStack, *, shared: bool) -> bool:
    """Take the lock for as long as *stack* lasts, if it is free."""
    descriptor = _descriptor(path)
    try:
        if _flock(descriptor, path, shared=shared) and _is_still_at(path, descriptor):
            if not shared:
                _sign(descriptor)
            stack.callback(os.close, descriptor)
            return True
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return False


def _descriptor(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Broken(f"the lock {path} cannot be opened: {error.strerror}") from error


def _flock(descriptor: int, path: Path, *, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise Broken(f"the lock {path} cannot be taken: {error.strerror}") from error
    return True


def _sign(descriptor: int) -> None:
    """Note who holds the lock, for those who wait; on a full disk it goes unsaid."""
    with contextlib.suppress(OSError):
        note = f"{os.getpid()} {platform.node()}\n".encode()
        os.pwrite(descriptor, note, 0)
        os.ftruncate(descriptor, len(note))


def _is_still_at(path: Path, descriptor: int) -> bool:
    # a lock on a file that was removed meanwhile excludes nobody
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
