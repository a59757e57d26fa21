"""Object stores: for each base, packs of the objects that it reaches, which is all that its sandboxes may read.

A later base has hard links to the packs of an ancestor's store, and one small pack of what is new.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.errors import Broken
from shoal.git.checkout import repository_locked
from shoal.git.closure import (
    GATHER_SECONDS,
    OnGather,
    boundary,
    count_commits,
    forks,
    is_whole,
    nearest_ancestor,
    pack_closure,
)
from shoal.model.repository import Repository
from shoal.proc.free_space import above_floor
from shoal.workspaces.remove import remove_all

BUDGET_BYTES = 10 * 2**30
MAX_STORES = 200
MAX_PACKS = 16
LASTING_PACKS = 8
SOON_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Part:
    """Packs of a store; together with the earlier ones, they have everything that *commit* reaches."""

    commit: str
    packs: tuple[str, ...]
    bytes: int


def stores_beside(bases: Path) -> Path:
    """Return the folder of object stores that belongs to a folder of base checkouts."""
    return bases.with_name("objects")


@contextlib.asynccontextmanager
async def objects_ready(
    repository: Repository,
    commit: str,
    stores: Path,
    *,
    on_gather: OnGather | None = None,
    budget: int = BUDGET_BYTES,
) -> AsyncIterator[Path]:
    """Hold the objects that *commit* reaches, collecting them if needed; while held, they are not removed."""
    folder = stores / f"{commit}{_suffix(repository)}"
    hold = _hold_store(folder)
    if hold is None:
        stores.mkdir(mode=0o700, exist_ok=True)
        async with _said_if_slow(repository, commit, on_gather), repository_locked(stores, seconds=GATHER_SECONDS):
            hold = _hold_store(folder)  # another process may have been faster
            if hold is None:
                await _clear(folder)
                await _make_store(repository, commit, folder)
                hold = _hold_store(folder)
                await _evict(stores, budget)
    if hold is None:
        raise Broken(f"{folder} was made and is gone; is something else cleaning up there?")
    try:
        os.utime(folder / "ready")
        yield folder / "objects"
    finally:
        os.close(hold)


def _suffix(repository: Repository) -> str:
    end = boundary(repository)
    return f"-{end}" if end else ""


def _hold_store(folder: Path, mode: int = fcntl.LOCK_SH) -> int | None:
    """Hold a complete store by the returned descriptor; `None` if there is none, or it is locked."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
        # It may have been renamed away and replaced by another before it was locked.
        if _parts(folder) and os.path.samestat(os.fstat(fd), folder.stat()):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def _parts(folder: Path) -> tuple[Part, ...]:
    """Read the parts of a store; none if it is incomplete or its note was lost in a power failure."""
    try:
        noted = json.loads((folder / "ready").read_bytes())
        parts = tuple(Part(part["commit"], tuple(part["packs"]), part["bytes"]) for part in noted)
        return parts if all(_is_there(folder, part) for part in parts) else ()
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _is_there(folder: Path, part: Part) -> bool:
    packs = [folder / "objects" / "pack" / name for name in part.packs]
    indexed = all(pack.with_suffix(".idx").stat().st_size for pack in packs)
    return indexed and sum(pack.with_suffix(".pack").stat().st_size for pack in packs) == part.bytes


async def _clear(folder: Path) -> None:
    """Remove a damaged store."""
    if os.path.lexists(folder):
        aside = folder.with_name(f"gone-{secrets.token_hex(4)}")
        folder.rename(aside)
        with contextlib.suppress(Broken, TimeoutError):  # it is only a cache: `clean` tries again
            await remove_all(aside)


async def _make_store(repository: Repository, commit: str, folder: Path) -> None:
    """Build in a temporary folder and rename it, so that a store is complete or absent."""
    aside = folder.with_name(f"making-{secrets.token_hex(4)}")
    objects = aside / "objects"
    try:
        (objects / "pack").mkdir(parents=True)
        (objects / "info").mkdir()
        async with above_floor(aside):
            grown = await _extend_store(repository, commit, folder, objects)
            parts = grown or await _gather_parts(repository, commit, objects)
        with (aside / "ready").open("w") as note:
            note.write(json.dumps([asdict(part) for part in parts]))
            note.flush()
            os.fsync(note.fileno())
        aside.rename(folder)
    except OSError as error:
        raise Broken(f"{aside} cannot be written: {error.strerror}") from error
    finally:
        if aside.exists():
            await remove_all(aside)


async def _extend_store(repository: Repository, commit: str, folder: Path, objects: Path) -> tuple[Part, ...]:
    """Link the packs of the nearest ancestor's store and add the new objects, if possible."""
    found = await _nearest(repository, commit, folder)
    if found is None:
        return ()
    source, parts = found
    parts = parts if len(parts) < MAX_PACKS else _lasting(parts)
    for name in (name for part in parts for name in part.packs):
        for file in (source / "objects" / "pack").glob(f"{name}.*"):
            _link(file, objects / "pack" / file.name)
    parts = (*parts, await _pack_part(repository, commit, objects, since=parts[-1].commit))
    if repository.promisor is None or await is_whole(repository, commit, objects):
        return parts
    # Something was fetched since then: what the ancestor's store lacks, no new object provides either.
    await remove_all(objects / "pack")
    (objects / "pack").mkdir()
    return ()


async def _gather_parts(repository: Repository, commit: str, objects: Path) -> tuple[Part, ...]:
    """Copy everything, in parts, so that a branch from an older commit can reuse the earlier parts."""
    parts: list[Part] = []
    for end in (*await forks(repository, commit), commit):
        since = parts[-1].commit if parts else None
        parts.append(await _pack_part(repository, end, objects, since=since, is_quick=True))
    return tuple(parts)


async def _pack_part(
    repository: Repository, commit: str, objects: Path, *, since: str | None, is_quick: bool = False
) -> Part:
    before = set((objects / "pack").glob("*.pack"))
    await pack_closure(repository, commit, objects, since=since, is_quick=is_quick)
    new = set((objects / "pack").glob("*.pack")) - before
    return Part(commit, tuple(sorted(path.stem for path in new)), sum(path.stat().st_size for path in new))


async def _nearest(repository: Repository, commit: str, folder: Path) -> tuple[Path, tuple[Part, ...]] | None:
    """Find the store with the most of what *commit* reaches, and how many of its parts have nothing else."""
    suffix = _suffix(repository)
    stores = {path.parent.name.removesuffix(suffix): path.parent for path in folder.parent.glob(f"*{suffix}/ready")}
    stores = {name: store for name, store in stores.items() if len(name) == repository.digits}
    if not stores:
        return None
    parts = {store: _parts(store) for store in stores.values()}
    ends = {part.commit: (store, number) for store in parts for number, part in enumerate(parts[store], 1)}
    ancestor = await nearest_ancestor(repository, commit, ends)
    if ancestor is None:
        return None
    store, number = ends[ancestor]
    return store, parts[store][:number]


def _lasting(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Drop the last and smallest parts, to repack them as one."""
    number, folded = len(parts), 0
    while number > 1 and (number > LASTING_PACKS or parts[number - 1].bytes <= 2 * folded):
        number -= 1
        folded += parts[number].bytes
    return parts[:number]


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        shutil.copyfile(file, target)  # another user's file, too many links, or a file system without them


@contextlib.asynccontextmanager
async def _said_if_slow(repository: Repository, commit: str, on_gather: OnGather | None) -> AsyncIterator[None]:
    """Call *on_gather* once if this takes longer than a moment."""
    if on_gather is None:
        yield
        return
    error: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        speaking = group.create_task(_say_soon(repository, commit, on_gather))
        try:
            yield
        except BaseException as raised:  # passed around the task group, which would wrap it
            error = raised
        speaking.cancel()
    if error is not None:
        raise error


async def _say_soon(repository: Repository, commit: str, on_gather: OnGather) -> None:
    await asyncio.sleep(SOON_SECONDS)
    on_gather(await count_commits(repository, commit))


async def _evict(stores: Path, budget: int) -> None:
    """Remove the longest unused stores until the rest are few and within the budget; stores in use stay."""
    ready = sorted(stores.glob("*/ready"), key=lambda path: path.stat().st_mtime)
    sizes = {path.parent: _bytes(path.parent) for path in ready}
    left, total = len(sizes), sum(sizes.values())
    for store, size in sizes.items():
        if left <= MAX_STORES and total <= budget:
            return
        if await _remove(store):
            left, total = left - 1, total - size


def _bytes(store: Path) -> float:
    """Return the size of a store; shared packs count in part for each."""
    seen = [path.stat() for path in (store / "objects" / "pack").iterdir()]
    return sum(file.st_blocks * 512 / file.st_nlink for file in seen)


async def evict_store(store: Path) -> None:
    """Remove a store, unless it is in use."""
    with contextlib.suppress(Broken):  # another process is making one, which may build on this
        async with repository_locked(store.parent, seconds=0):
            await _remove(store)


async def _remove(store: Path) -> bool:
    hold = _hold_store(store, fcntl.LOCK_EX)
    if hold is None:
        return False
    try:
        aside = store.with_name(f"gone-{secrets.token_hex(4)}")
        store.rename(aside)
        await remove_all(aside)
    finally:
        os.close(hold)
    return True


async def sweep_stores(stores: Path) -> None:
    """Remove what a killed process left half made or half removed."""
    left = [*stores.glob("making-*"), *stores.glob("gone-*")]
    if left:
        with contextlib.suppress(Broken):  # another process is making one now: the folder may be its own
            async with repository_locked(stores, seconds=0):
                await remove_all(*left)
