"""The results of setup commands as layers: immutable, made once, shared by all agents and later runs."""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from shoal.errors import BadInput, Broken, SetupFailed
from shoal.store.lock import hold_lock
from shoal.workspaces.base_checkouts import BUDGET_BYTES, hold_base, read_base_note, write_note
from shoal.workspaces.remove import remove_all

WAIT_SECONDS = 0.5
TREE = "tree"
Make = Callable[[Path], Awaitable[bool]]
"""Fills an empty folder, with the layer in `tree`; `False` if it was stopped."""

_failures: dict[tuple[Path, Hashable], tuple[float, str]] = {}
"""When and why a set-up last failed: a session that waited for it need not run it again to fail the same way."""


@contextlib.asynccontextmanager
async def hold_layer(
    setups: Path, key: str, make: Make, stop: asyncio.Event, *, held_to: Hashable = None, budget: int = BUDGET_BYTES
) -> AsyncIterator[Path | None]:
    """Hold the layer of *key*, making it if needed; while held, it is not removed.

    Yields `None` if *stop* is set before it exists. A waiter with the same *held_to* limits fails with the maker.
    """
    folder = setups / key
    (setups / "at").mkdir(parents=True, exist_ok=True)
    hold = None
    async with _hold_lock(folder, stop, held_to) as is_ours:
        is_there = is_ready(setups, key)
        if is_ours and (is_there or await _make(folder, make, held_to)):
            hold = hold_base(folder)
    if hold is None:
        yield None
        return
    try:
        os.utime(folder / "ready")
        if not is_there:
            await _evict(setups, budget)
        yield folder
    finally:
        os.close(hold)


def is_ready(setups: Path, key: str) -> bool:
    """Return whether the layer of *key* is there."""
    return (setups / key / "ready").exists()


@contextlib.asynccontextmanager
async def _hold_lock(folder: Path, stop: asyncio.Event, held_to: Hashable) -> AsyncIterator[bool]:
    """Lock one layer; if another process's setup of it fails meanwhile, fail with it."""
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        is_ours = False
        while not is_ours and not stop.is_set():
            with contextlib.suppress(Broken):  # another process is making it: its time limit ends this wait
                await stack.enter_async_context(hold_lock(_lock(folder), timeout=WAIT_SECONDS))
                is_ours = True
        when, why = _failures.get((folder, held_to), (0.0, ""))
        if when > began:
            raise SetupFailed(why)
        yield is_ours


async def _make(folder: Path, make: Make, held_to: Hashable) -> bool:
    """Build in a temporary folder and rename it, so that a layer is complete or absent."""
    aside = folder.with_name(f"making-{folder.name}")
    await remove_all(aside)  # what a killed process left; we hold the lock
    aside.mkdir(mode=0o700)
    try:
        if not await make(aside):
            return False
        _note(aside)
        aside.rename(folder)
    except SetupFailed as error:
        _failures[folder, held_to] = (time.monotonic(), str(error))
        raise
    finally:
        if aside.exists():
            await remove_all(aside)
    return True


def _note(aside: Path) -> None:
    try:
        write_note(aside, aside / TREE, files=0)
    except OSError as error:  # paths that are too long, or folders without access
        raise SetupFailed(f"setup failed: what it left cannot be counted: {error.strerror}") from None


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


async def _evict(setups: Path, budget: int) -> None:
    """Remove what killed processes left half made, and the longest unused layers until the rest is within *budget*."""
    for aside in setups.glob("making-*"):
        with contextlib.suppress(Broken):
            async with hold_lock(_lock(setups / aside.name.removeprefix("making-")), timeout=0):
                await remove_all(aside)
    ready = sorted(_list_by_use(setups))
    total = sum(size for _, size, _ in ready)
    for _, _, folder in ready:
        if total <= budget:
            return
        total -= await evict_setup(folder)


def _list_by_use(setups: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield when each layer was last used, and its size."""
    for path in setups.glob("*/ready"):
        with contextlib.suppress(
            FileNotFoundError, ValueError
        ):  # another Shoal is removing it, or a crash interrupted it
            yield path.stat().st_mtime, read_base_note(path.parent)["bytes"], path.parent


async def evict_setup(folder: Path) -> int:
    """Remove one layer, unless it is in use, and return how many bytes it took."""
    try:
        async with hold_lock(_lock(folder), timeout=0):
            hold = hold_base(folder, fcntl.LOCK_EX)
            try:
                size = read_base_note(folder)["bytes"]
                aside = folder.with_name(f"making-{folder.name}")
                folder.rename(aside)
                await remove_all(aside, folder.parent / "at" / folder.name)
            finally:
                os.close(hold)
            _lock(folder).unlink(missing_ok=True)
    except (BlockingIOError, FileNotFoundError, Broken):
        return 0
    return size


MAX_FILES = 2000
MAX_BYTES = 100 * 2**20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_files(source: Path, target: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Copy the regular files called *names* and return which they were; skip links and what is behind one.

    Files and links in the way at *target* are replaced. Raises `BadInput` for too much.
    """
    found: list[str] = []
    size = 0
    for name in names:
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError),
            _open_file(source, name) as fd,
        ):
            if fd is None:
                continue
            size += os.fstat(fd).st_size
            if len(found) >= MAX_FILES or size > MAX_BYTES:
                what = f"more than {MAX_FILES} files or {MAX_BYTES // 2**20} MiB"
                raise BadInput(f".worktreeinclude names {what}; name fewer, or let `setup` install them")
            _write_file(fd, target, name)
            found.append(name)
    return tuple(found)


def digest(folder: Path, names: Iterable[str]) -> str:
    """Name the contents of files, and their modes."""
    made = hashlib.sha256()
    for name in names:
        with _open_file(folder, name) as fd:
            if fd is not None:
                with os.fdopen(os.dup(fd), "rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                made.update(f"{name}\0{os.fstat(fd).st_mode:o}\0{content}\0".encode(errors="surrogateescape"))
    return made.hexdigest()


@contextlib.contextmanager
def _open_file(folder: Path, name: str) -> Iterator[int | None]:
    """Open a regular file below *folder*; return `None` for a link, a path through a link, or anything else."""
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
    """Open the folder that contains *name*, step by step."""
    fd = _keep_open(stack, os.open(folder, FOLDER))
    for part in PurePosixPath(name).parts[:-1]:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=fd)
        fd = _keep_open(stack, os.open(part, FOLDER, dir_fd=fd))
    return fd


def _keep_open(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _write_file(source: int, target: Path, name: str) -> None:
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
    """Read a regular file below *folder*, of at most *most* bytes; `None` if there is none."""
    with _open_file(folder, name) as fd:
        if fd is None or os.fstat(fd).st_size > most:
            return None
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(most)


def is_file(folder: Path, name: str) -> bool:
    """Return whether there is a regular file that is not reached by a link."""
    with _open_file(folder, name) as fd:
        return fd is not None
