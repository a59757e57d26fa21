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
    folder = bases / f"{commit}-{_settings_digest(repository)}"
    async with repository_locked(repository.git):
        if not (folder / "ready").exists():
            await _made(repository, commit, folder)
        hold = _held(folder)
    try:
        os.utime(folder / "ready")
        await _evict(repository, bases, budget)
        noted = _noted(folder)
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
    (aside / "ready").write_text(json.dumps({"files": files, "bytes": _bytes(tree)}))
    await removed(folder, aside / "git")
    aside.rename(folder)


def _settings_digest(repository: Repository) -> str:
    text = json.dumps(sorted(repository.settings.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _held(folder: Path, mode: int = fcntl.LOCK_SH) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise
    return fd


def _noted(folder: Path) -> dict[str, int]:
    noted: dict[str, int] = json.loads((folder / "ready").read_text())
    return noted


def _bytes(tree: Path) -> int:
    return sum(os.lstat(f"{place}/{name}").st_blocks * 512 for place, _, names in os.walk(tree) for name in names)


async def _evict(repository: Repository, bases: Path, budget: int) -> None:
    """Remove the longest unused bases until the rest is within the budget; bases in use stay."""
    ready = sorted(bases.glob("*/ready"), key=lambda path: path.stat().st_mtime)
    total = sum(_noted(path.parent)["bytes"] for path in ready)
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
        hold = _held(folder, fcntl.LOCK_EX)
    except (BlockingIOError, FileNotFoundError):
        return 0
    try:
        size = _noted(folder)["bytes"]
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
