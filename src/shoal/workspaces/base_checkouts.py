"""Base checkouts: one immutable tree per commit, made once, shared by all agents and by later runs."""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal import proc
from shoal.errors import Broken
from shoal.git.checkout import check_out, repository_locked
from shoal.git.closure import OnGather
from shoal.git.gitdir import write_gitdir
from shoal.git.run import git
from shoal.model.command import Command
from shoal.model.repository import Base, Repository
from shoal.proc.free_space import above_floor
from shoal.workspaces.object_stores import objects_ready, stores_beside
from shoal.workspaces.remove import remove_all

BUDGET_BYTES = 10 * 2**30
MAX_PLACES = 4
SYNC_SECONDS = 600.0


@contextlib.asynccontextmanager
async def base_ready(
    repository: Repository, commit: str, bases: Path, *, budget: int = BUDGET_BYTES, on_gather: OnGather | None = None
) -> AsyncIterator[Base]:
    """Hold the checkout of *commit*, making it if needed; while held, it is not removed."""
    name = f"{commit}-{settings_digest(repository)}"
    async with repository_locked(repository.git):
        folder = await _choose_folder(bases / name)
        if not (folder / "ready").exists():
            await _make(repository, commit, folder)
        hold = hold_base(folder)
    try:
        os.utime(folder / "ready")
        await _evict(repository, bases, budget)
        noted = read_base_note(folder)
        tree, index = folder / "tree", folder / "index"
        async with objects_ready(repository, commit, stores_beside(bases), on_gather=on_gather) as objects:
            yield Base(
                commit=commit,
                tree=tree,
                objects=objects,
                index=index,
                files=noted["files"],
                bytes=noted["bytes"],
            )
    finally:
        os.close(hold)


async def _make(repository: Repository, commit: str, folder: Path) -> None:
    """Build in a temporary folder and rename it, so that a base is complete or absent."""
    async with _building(folder) as aside:
        tree = aside / "tree"
        files = await check_out(repository, commit, tree=tree, index=aside / "index", shadow=aside / "git")
        # Each agent's gitdir pointer covers this empty file, so the agent's own layer stays empty.
        (tree / ".git").touch()
        await remove_all(aside / "git")
        await _publish(aside, folder, files=files)


@contextlib.asynccontextmanager
async def _building(folder: Path) -> AsyncIterator[Path]:
    """Yield a temporary folder beside *folder*; the block ends before the disk is full, and an abort leaves nothing."""
    aside = folder.with_name(f"making-{secrets.token_hex(4)}")
    (aside / "tree").mkdir(parents=True)
    try:
        async with above_floor(aside.parent):
            yield aside
    except BaseException:
        with contextlib.suppress(Broken, TimeoutError):  # the next start tries again
            await remove_all(aside)
        raise


async def _publish(aside: Path, folder: Path, *, files: int) -> None:
    """Move a complete checkout into place: its files reach the disk before its name."""
    await sync_files(aside)
    write_note(aside, aside / "tree", files=files)
    aside.rename(folder)
    _sync(folder.parent)


async def _choose_folder(folder: Path) -> Path:
    """Return the path for a checkout; move away one that is damaged or belongs to another user."""
    for place in (folder, *(folder.with_name(f"{folder.name}-{number}") for number in range(2, MAX_PLACES + 1))):
        if not os.path.lexists(place) or await asyncio.to_thread(is_intact, place):
            return place
        with contextlib.suppress(OSError):  # a run uses it, or it is not ours, or protected: it is only a cache
            os.close(hold_base(place, fcntl.LOCK_EX))
            await discard(place)
            return place
    raise Broken(f"{folder} is damaged and cannot be moved away; remove it by hand")


async def discard(folder: Path) -> bool:
    """Move a cache away and remove it; `False` if some of it remains, for the next `clean`."""
    aside = folder.with_name(f"gone-{secrets.token_hex(4)}")
    folder.rename(aside)
    with contextlib.suppress(Broken, TimeoutError):
        await remove_all(aside)
    return not aside.exists()


def is_intact(folder: Path) -> bool:
    """Return whether a checkout is unchanged, by the size and time of each file."""
    try:
        noted = json.loads((folder / "ready").read_bytes())
        return bool(noted["stamp"] == _scan(folder / "tree").stamp)
    except (OSError, ValueError, KeyError, TypeError):
        return False


async def sync_files(folder: Path) -> None:
    """Sync *folder* to disk, where the file system supports it."""
    argv = ("sync", "-f", "--", str(folder))
    await proc.run(
        Command(argv=argv, cwd=Path("/"), env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}), timeout=SYNC_SECONDS
    )


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_note(folder: Path, tree: Path, *, files: int) -> None:
    """Record that a base is complete, its size, and how to recognise it."""
    scan = _scan(tree)
    note = folder / "ready"
    note.write_text(json.dumps({"files": files, "bytes": scan.bytes, "stamp": scan.stamp}))
    _sync(note)


def settings_digest(repository: Repository) -> str:
    """Return a digest of the settings that a checkout depends on."""
    text = json.dumps(sorted(repository.settings.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def hold_base(folder: Path, mode: int = fcntl.LOCK_SH) -> int:
    """Protect a base from removal while the returned descriptor is open."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise
    return fd


def read_base_note(folder: Path) -> dict[str, int]:
    """Read the size of a base; `None` if its note is damaged."""
    try:
        noted = json.loads((folder / "ready").read_bytes())
        return {"files": int(noted["files"]), "bytes": int(noted["bytes"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"files": 0, "bytes": 0}


@dataclass(frozen=True, slots=True)
class _Scan:
    """The size of a tree, and a digest of the names, kinds, sizes and times of all its files."""

    bytes: int
    stamp: str


def _scan(tree: Path) -> _Scan:
    total, rest, found = 0, [os.fsencode(tree)], []
    start = len(rest[0])
    while rest:  # not with os.walk, which recurses for each level of a tree
        with os.scandir(rest.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    rest.append(entry.path)
                else:
                    seen = entry.stat(follow_symlinks=False)
                    total += seen.st_blocks * 512
                    found.append(b"%s %o %d %d" % (entry.path[start:], seen.st_mode, seen.st_size, seen.st_mtime_ns))
    return _Scan(total, hashlib.sha256(b"\0".join(sorted(found))).hexdigest())


async def _evict(repository: Repository, bases: Path, budget: int) -> None:
    """Remove the longest unused bases until the rest is within the budget; bases in use stay."""
    ready = sorted(bases.glob("*/ready"), key=lambda path: path.stat().st_mtime)
    total = sum(read_base_note(path.parent)["bytes"] for path in ready)
    for path in ready:
        if total <= budget:
            return
        total -= await evict_base(repository, path.parent)


async def evict_base(repository: Repository, folder: Path) -> int:
    """Remove one base, unless it is in use, and return how many bytes it took."""
    async with repository_locked(repository.git):
        return await _evict_bases(folder)


async def _evict_bases(folder: Path) -> int:
    try:
        hold = hold_base(folder, fcntl.LOCK_EX)
    except OSError:  # it is in use, gone, or another user's
        return 0
    try:
        size = read_base_note(folder)["bytes"]
        with contextlib.suppress(OSError):
            await discard(folder)
    finally:
        os.close(hold)
    return size


async def sweep_bases(repository: Repository, bases: Path) -> list[Path]:
    """Remove what killed processes left half made or half removed; return what cannot be removed."""
    async with repository_locked(repository.git):
        left = [*bases.glob("making-*"), *bases.glob("gone-*")]
        if left:
            with contextlib.suppress(Broken, TimeoutError):
                await remove_all(*left)
    return [path for path in left if path.exists()]


WHITEOUT = os.makedev(0, 0)
"""How overlayfs marks a deleted file; any user may create one since Linux 5.8."""


@dataclass(frozen=True, slots=True)
class _Difference:
    """The files of a commit that differ from the base, and those that it lacks."""

    changed: tuple[bytes, ...]
    gone: tuple[bytes, ...]


@contextlib.asynccontextmanager
async def delta_ready(
    repository: Repository, commit: str, over: Base, bases: Path, *, on_gather: OnGather | None = None
) -> AsyncIterator[Base]:
    """Hold a layer that turns *over*, a whole checkout, into *commit*; created if missing."""
    name = f"{commit}-{settings_digest(repository)}-over-{over.commit[:12]}"
    async with repository_locked(repository.git):
        folder = await _choose_folder(bases / name)
        if not (folder / "ready").exists():
            await _make_delta(repository, commit, over, folder)
        hold = hold_base(folder)
    try:
        os.utime(folder / "ready")
        note = read_base_note(folder)
        tree, index = folder / "tree", folder / "index"
        async with objects_ready(repository, commit, stores_beside(bases), on_gather=on_gather) as objects:
            yield Base(
                commit=commit,
                tree=tree,
                objects=objects,
                below=over.trees,
                over=over,
                index=index,
                files=note["files"],
                bytes=over.bytes + note["bytes"],
            )
    finally:
        os.close(hold)


async def _make_delta(repository: Repository, commit: str, over: Base, folder: Path) -> None:
    """Build in a temporary folder and rename it, so that a layer is complete or absent."""
    async with _building(folder) as aside:
        tree, index, shadow = aside / "tree", aside / "index", aside / "git"
        shutil.copyfile(over.index, index)
        write_gitdir(shadow, repository, head=commit, refs={}, index=None, lenders=repository.lenders, loose_stat=False)
        env = {"GIT_WORK_TREE": str(tree), "GIT_INDEX_FILE": str(index)}
        difference = await _difference(shadow, over.commit, commit)
        # Only changed entries: unchanged ones keep the stat data of the layer below.
        await git(shadow, "read-tree", "-m", commit, env=env)
        names = (await git(shadow, "ls-files", "-z", env=env, limit=2**30)).stdout.split(b"\0")[:-1]
        changed = b"".join(name + b"\0" for name in difference.changed)
        await git(shadow, "checkout-index", "-u", "-z", "--stdin", env=env, stdin=changed)
        _whiten(tree, difference.gone, set(_folders(names)))
        await remove_all(shadow)
        await _publish(aside, folder, files=len(names))


async def _difference(shadow: Path, base: str, commit: str) -> _Difference:
    wanted = ("-r", "-z", "--name-status", "--no-renames", "--ignore-submodules=all")
    done = await git(shadow, "diff-tree", *wanted, base, commit, limit=2**30)
    words = done.stdout.split(b"\0")[:-1]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    changed = tuple(path for kind, path in pairs if kind != b"D")
    return _Difference(changed, tuple(path for kind, path in pairs if kind == b"D"))


def _whiten(tree: Path, gone: tuple[bytes, ...], folders: set[bytes]) -> None:
    """Hide deleted paths: a whole folder if the commit has nothing left in it."""
    for top in {_topmost(path, folders) for path in gone}:
        place = os.fsencode(tree) + b"/" + top
        if os.path.lexists(place):
            continue  # a file in place of a folder hides it already
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120 - names are bytes
        if not stat.S_ISLNK(os.lstat(os.path.dirname(place)).st_mode):  # noqa: PTH120
            os.mknod(place, stat.S_IFCHR | 0o600, WHITEOUT)


def _topmost(path: bytes, folders: set[bytes]) -> bytes:
    while (above := os.path.dirname(path)) and above not in folders:  # noqa: PTH120
        path = above
    return path


def _folders(names: list[bytes]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for name in names:
        above = os.path.dirname(name)  # noqa: PTH120
        while above and above not in seen:
            seen.add(above)
            yield above
            above = os.path.dirname(above)  # noqa: PTH120
