"""The index of a checkout of the user's while it is brought on: under git's own lock, which says that it is ours.

Killed meanwhile, a lock of git's would be anybody's; one that is marked is taken away by the next who holds the
repository's lock, without which nobody of us gets here.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = b"held by shoal merge, which goes on with what it began when it is called again\n"
PREFIX = "index-shoal-"


@dataclass(frozen=True, slots=True)
class HeldIndex:
    """A copy of the index to work on; *keep* makes it the index."""

    copy: Path
    keep: Callable[[], object]


@contextlib.contextmanager
def held_index(gitdir: Path) -> Iterator[HeldIndex | None]:
    """Hold git's lock of the index in *gitdir*; `None` where another git holds it."""
    copy, mark = own_index(gitdir), own_index(gitdir)
    lock, index = gitdir / "index.lock", gitdir / "index"
    mark.write_bytes(MARK)
    try:
        if not _locked(mark, lock):
            yield None
            return
        try:
            if index.exists():
                shutil.copy2(index, copy)  # with its time: by that git tells which files it has to look at again
            yield HeldIndex(copy, lambda: copy.replace(index))
        finally:
            lock.unlink(missing_ok=True)
    finally:
        for left in (mark, copy, copy.with_name(f"{copy.name}.lock")):
            left.unlink(missing_ok=True)


def _locked(mark: Path, lock: Path) -> bool:
    """Make the lock, there with its mark or not at all where the file system has hard links."""
    try:
        os.link(mark, lock)
    except FileExistsError:
        return False
    except OSError:
        try:
            with lock.open("xb") as file:
                file.write(MARK)
        except FileExistsError:
            return False
    return True


def own_index(gitdir: Path) -> Path:
    """Name an index of ours beside the user's own."""
    return gitdir / f"{PREFIX}{secrets.token_hex(4)}"


def cleared(gitdir: Path) -> None:
    """Take away what one of us that was killed left; whoever calls holds the repository's lock."""
    lock = gitdir / "index.lock"
    with contextlib.suppress(OSError):
        if lock.is_file() and lock.stat().st_size == len(MARK) and lock.read_bytes() == MARK:
            lock.unlink()
    for left in gitdir.glob(f"{PREFIX}*"):
        left.unlink(missing_ok=True)
