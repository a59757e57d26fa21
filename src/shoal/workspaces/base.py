"""Base checkouts: one immutable tree per commit, made once, shared by all agents and by later runs."""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from shoal.git.checkout import check_out
from shoal.git.lock import repository_locked
from shoal.model.repository import Base, Repository
from shoal.workspaces.remove import removed

BUDGET_BYTES = 10 * 2**30


@contextlib.asynccontextmanager
async def base_ready(
    repository: Repository, commit: str, bases: Path, *, budget: int = BUDGET_BYTES
) -> AsyncIterator[Base]:
    """Hold the checkout of *commit*, made now if it is not there; while held, nobody removes it."""
    folder = bases / f"{commit}-{settings_digest(repository)}"
    async with repository_locked(repository.git):
        if not (folder / "ready").exists():
            await _made(repository, commit, folder)
        hold = held_base(folder)
    try:
        os.utime(folder / "ready")
        await _evict(repository, bases, budget)
        noted = noted_base(folder)
        tree, index = folder / "tree", folder / "index"
        yield Base(commit=commit, tree=tree, index=index, files=noted["files"], bytes=noted["bytes"])
    finally:
        os.close(hold)


async def _made(repository: Repository, commit: str, folder: Path) -> None:
    """Build aside and rename into place, so that a base is whole or absent."""
    aside = folder.with_name(f"making-{secrets.token_hex(4)}")
    tree = aside / "tree"
    tree.mkdir(parents=True)
    files = await check_out(repository, commit, tree=tree, index=aside / "index", shadow=aside / "git")
    # The gitdir pointer of each agent is laid over this empty file, so the agent's own layer stays empty.
    (tree / ".git").touch()
    write_note(aside, tree, files=files)
    await removed(folder, aside / "git")
    aside.rename(folder)


def write_note(folder: Path, tree: Path, *, files: int) -> None:
    """Note that a base is whole, and how large."""
    (folder / "ready").write_text(json.dumps({"files": files, "bytes": _bytes(tree)}))


def settings_digest(repository: Repository) -> str:
    """Name the settings that a checkout depends on."""
    text = json.dumps(sorted(repository.settings.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def held_base(folder: Path, mode: int = fcntl.LOCK_SH) -> int:
    """Hold a base against being removed, by the returned descriptor."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise
    return fd


def noted_base(folder: Path) -> dict[str, int]:
    """Read what was noted when the base was made."""
    noted: dict[str, int] = json.loads((folder / "ready").read_text())
    return noted


def _bytes(tree: Path) -> int:
    total, rest = 0, [os.fspath(tree)]
    while rest:  # not by os.walk, which calls itself for each level of a tree
        with os.scandir(rest.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    rest.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


async def _evict(repository: Repository, bases: Path, budget: int) -> None:
    """Remove the longest unused bases until the rest is within the budget; bases in use stay."""
    ready = sorted(bases.glob("*/ready"), key=lambda path: path.stat().st_mtime)
    total = sum(noted_base(path.parent)["bytes"] for path in ready)
    for path in ready:
        if total <= budget:
            return
        total -= await evicted(repository, path.parent)


async def evicted(repository: Repository, folder: Path) -> int:
    """Remove one base, unless it is in use, and return how many bytes it took."""
    async with repository_locked(repository.git):
        return await _evicted(folder)


async def _evicted(folder: Path) -> int:
    try:
        hold = held_base(folder, fcntl.LOCK_EX)
    except (BlockingIOError, FileNotFoundError):
        return 0
    try:
        size = noted_base(folder)["bytes"]
        aside = folder.with_name(f"gone-{secrets.token_hex(4)}")
        folder.rename(aside)
        await removed(aside)
    finally:
        os.close(hold)
    return size


async def swept(repository: Repository, bases: Path) -> None:
    """Remove what a killed process left half made or half removed."""
    async with repository_locked(repository.git):
        left = [*bases.glob("making-*"), *bases.glob("gone-*")]
        if left:
            await removed(*left)
