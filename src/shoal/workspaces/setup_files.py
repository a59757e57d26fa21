"""Copying a few files from one tree into another: through no link on either side, and not without bound."""

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from shoal.errors import BadInput

MOST_FILES = 2000
MOST_BYTES = 100 * 2**20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copied(source: Path, target: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Copy the plain files of those *names* and tell which they were; links, and what lies behind one, are left.

    What stands in the way at *target*, a file or a link, is replaced. Raises `BadInput` for more than is sensible.
    """
    found: list[str] = []
    size = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), _opened(source, name) as fd:
            if fd is None:
                continue
            size += os.fstat(fd).st_size
            if len(found) >= MOST_FILES or size > MOST_BYTES:
                what = f"more than {MOST_FILES} files or {MOST_BYTES // 2**20} MiB"
                raise BadInput(f".worktreeinclude names {what}; name fewer, or let `setup` install them")
            _written(fd, target, name)
            found.append(name)
    return tuple(found)


def digest(folder: Path, names: Iterable[str]) -> str:
    """Name the contents of files, and their modes."""
    made = hashlib.sha256()
    for name in names:
        with _opened(folder, name) as fd:
            if fd is not None:
                with os.fdopen(os.dup(fd), "rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                made.update(f"{name}\0{os.fstat(fd).st_mode:o}\0{content}\0".encode(errors="surrogateescape"))
    return made.hexdigest()


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[int | None]:
    """Open a plain file below *folder*; give `None` for a link or what lies behind one, and for what is no file."""
    with contextlib.ExitStack() as stack:
        try:
            fd = _within(stack, folder, name, make=False)
            file = os.open(PurePosixPath(name).name, FILE, dir_fd=fd)
        except OSError:
            yield None
            return
        stack.callback(os.close, file)
        yield file if stat.S_ISREG(os.fstat(file).st_mode) else None


def _within(stack: contextlib.ExitStack, folder: Path, name: str, *, make: bool) -> int:
    """Open the folder that *name* lies in, step by step."""
    fd = _kept(stack, os.open(folder, FOLDER))
    for part in PurePosixPath(name).parts[:-1]:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=fd)
        fd = _kept(stack, os.open(part, FOLDER, dir_fd=fd))
    return fd


def _kept(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _written(source: int, target: Path, name: str) -> None:
    with contextlib.ExitStack() as stack:
        try:
            fd = _within(stack, target, name, make=True)
        except (NotADirectoryError, OSError) as error:
            raise BadInput(f".worktreeinclude: {name!r} cannot be laid into the workspace: {error.strerror}") from None
        last = PurePosixPath(name).name
        with contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=fd)
        mode = 0o600 | (os.fstat(source).st_mode & 0o777)
        with os.fdopen(os.open(last, NEW, mode, dir_fd=fd), "wb") as file, os.fdopen(os.dup(source), "rb") as read:
            shutil.copyfileobj(read, file)


def content(folder: Path, name: str, most: int) -> bytes | None:
    """Read a plain file below *folder*, of at most so many bytes; `None` where there is none."""
    with _opened(folder, name) as fd:
        if fd is None or os.fstat(fd).st_size > most:
            return None
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(most)


def is_file(folder: Path, name: str) -> bool:
    """Say whether a plain file is there, and no link leads to it."""
    with _opened(folder, name) as fd:
        return fd is not None
