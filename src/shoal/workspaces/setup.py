"""What set-up commands made, as layers: each made once, immutable, shared by all agents and by later runs."""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from pathlib import Path

from shoal.errors import Broken, SetupFailed
from shoal.store.lock import held
from shoal.workspaces.base import BUDGET_BYTES, held_base, noted_base, write_note
from shoal.workspaces.remove import removed

WAIT_SECONDS = 0.5
TREE = "tree"
Make = Callable[[Path], Awaitable[bool]]
"""Fill an empty folder, with the layer in `tree`; `False` where it was told to stop."""

_failed: dict[tuple[Path, Hashable], tuple[float, str]] = {}
"""When and why a set-up failed last: who waited for it then need not run it once more to hear the same."""


@contextlib.asynccontextmanager
async def layer_ready(
    setups: Path, key: str, make: Make, stop: asyncio.Event, *, held_to: Hashable = None, budget: int = BUDGET_BYTES
) -> AsyncIterator[Path | None]:
    """Hold the layer of *key*, made now if it is not there; while held, nobody removes it.

    Gives `None` when *stop* is set before it is there. Who is *held_to* the same limits fails with who made it.
    """
    folder = setups / key
    (setups / "at").mkdir(parents=True, exist_ok=True)
    hold = None
    async with _locked(folder, stop, held_to) as is_ours:
        is_there = is_ready(setups, key)
        if is_ours and (is_there or await _made(folder, make, held_to)):
            hold = held_base(folder)
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
    """Say whether the layer of *key* is there."""
    return (setups / key / "ready").exists()


@contextlib.asynccontextmanager
async def _locked(folder: Path, stop: asyncio.Event, held_to: Hashable) -> AsyncIterator[bool]:
    """Take the lock of one layer; where another's set-up fails meanwhile, that failure is ours too."""
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        is_ours = False
        while not is_ours and not stop.is_set():
            with contextlib.suppress(Broken):  # somebody makes it: their own time limit ends this wait
                await stack.enter_async_context(held(_lock(folder), timeout=WAIT_SECONDS))
                is_ours = True
        when, why = _failed.get((folder, held_to), (0.0, ""))
        if when > began:
            raise SetupFailed(why)
        yield is_ours


async def _made(folder: Path, make: Make, held_to: Hashable) -> bool:
    """Build aside and rename into place, so that a layer is whole or absent."""
    aside = folder.with_name(f"making-{folder.name}")
    await removed(aside)  # what a killed process left; we hold the lock
    aside.mkdir(mode=0o700)
    try:
        if not await make(aside):
            return False
        _note(aside)
        aside.rename(folder)
    except SetupFailed as error:
        _failed[folder, held_to] = (time.monotonic(), str(error))
        raise
    finally:
        if aside.exists():
            await removed(aside)
    return True


def _note(aside: Path) -> None:
    try:
        write_note(aside, aside / TREE, files=0)
    except OSError as error:  # paths that are too long, or folders that are shut to us
        raise SetupFailed(f"setup failed: what it left cannot be counted: {error.strerror}") from None


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


async def _evict(setups: Path, budget: int) -> None:
    """Remove what killed processes left half made, and the longest unused layers until the rest is within *budget*."""
    for aside in setups.glob("making-*"):
        with contextlib.suppress(Broken):
            async with held(_lock(setups / aside.name.removeprefix("making-")), timeout=0):
                await removed(aside)
    ready = sorted(_used(setups))
    total = sum(size for _, size, _ in ready)
    for _, _, folder in ready:
        if total <= budget:
            return
        total -= await evicted(folder)


def _used(setups: Path) -> Iterator[tuple[float, int, Path]]:
    """Say when each layer was used last, and how large it is."""
    for path in setups.glob("*/ready"):
        with contextlib.suppress(FileNotFoundError, ValueError):  # another Shoal takes it away, or a crash cut it off
            yield path.stat().st_mtime, noted_base(path.parent)["bytes"], path.parent


async def evicted(folder: Path) -> int:
    """Remove one layer, unless it is in use, and return how many bytes it took."""
    try:
        async with held(_lock(folder), timeout=0):
            hold = held_base(folder, fcntl.LOCK_EX)
            try:
                size = noted_base(folder)["bytes"]
                aside = folder.with_name(f"making-{folder.name}")
                folder.rename(aside)
                await removed(aside, folder.parent / "at" / folder.name)
            finally:
                os.close(hold)
            _lock(folder).unlink(missing_ok=True)
    except (BlockingIOError, FileNotFoundError, Broken):
        return 0
    return size
