"""Locks between processes, which the kernel releases when their holder dies."""

import asyncio
import contextlib
import fcntl
import os
import platform
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Broken

_SHORTEST, _LONGEST = 0.005, 0.05


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that this process holds."""

    path: Path
    descriptor: int

    @property
    def is_in_place(self) -> bool:
        """Say whether its file is where it was: one that was removed or replaced excludes nobody."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Remove the file, unless it is another's by now."""
        if self.is_in_place:
            self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def hold_lock_blocking(path: Path, *, shared: bool = False, timeout: float) -> Iterator[None]:
    """Hold the lock at *path*, exclusively or shared; raise `Broken` if it does not become free in time."""
    with contextlib.ExitStack() as stack:
        for pause in _pauses(path, timeout):
            if _take(path, stack, shared=shared):
                break
            time.sleep(pause)
        yield


@contextlib.asynccontextmanager
async def hold_lock(path: Path, *, shared: bool = False, timeout: float) -> AsyncIterator[HeldLock]:
    """Hold the lock at *path* as `hold_lock_blocking` does, without keeping the loop from its work meanwhile."""
    with contextlib.ExitStack() as stack:
        for pause in _pauses(path, timeout):
            if (held := _take(path, stack, shared=shared)) is not None:
                yield held
                return
            await asyncio.sleep(pause)


def is_locked(path: Path) -> bool:
    """Return whether anybody holds the lock at *path*; nothing is created.

    The check takes the lock for a moment, so a process that wants it then must wait at least one pause.
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
    """Yield the pause after each attempt: the first attempt is immediate, and there is one more at the very end."""
    end = time.monotonic() + timeout
    pause = _SHORTEST
    while (left := end - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, _LONGEST)
    yield 0.0
    raise Broken(
        f"the lock {path} was not released within {timeout:g} s: {read_holder(path)} holds it; wait for it, or end it"
    )


def read_holder(path: Path) -> str:
    """Name the process that took the lock at *path* last, and its host."""
    with contextlib.suppress(OSError):
        pid, _, host = path.read_text(errors="replace").partition("\n")[0].partition(" ")
        if pid.isdecimal():
            return f"process {pid} on {host}"
    return "another Shoal"


def _take(path: Path, stack: contextlib.ExitStack, *, shared: bool) -> HeldLock | None:
    """Take the lock for as long as *stack* lasts, if it is free."""
    held = HeldLock(path, descriptor := _descriptor(path))
    try:
        if _flock(descriptor, path, shared=shared) and held.is_in_place:
            if not shared:
                _sign(descriptor)
            stack.callback(os.close, descriptor)
            return held
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


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
