"""Mirrors: on a node, what has been sent of each repository, in a folder of this user's state."""

import contextlib
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BadInput, Broken
from shoal.executors.wire.messages import OpenMirror
from shoal.git.packs import configure_mirror, list_held, make_mirror
from shoal.git.repository import CHECKOUT_SETTINGS
from shoal.store.known_repositories import find_user_folder
from shoal.store.lock import hold_lock, is_locked
from shoal.store.paths import StatePaths
from shoal.workspaces.base_checkouts import read_base_note
from shoal.workspaces.remove import remove_all

KEY = re.compile(r"[0-9a-f]{8,64}")
BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,200}")
FORMATS = ("sha1", "sha256")
LOCK_SECONDS = 60.0
BUDGET_BYTES = 20 * 2**30
"""What all mirrors of a user may take; those that were not used for longest are removed first."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A repository with what was sent of another machine's; nothing is checked out in its *folder*."""

    folder: Path

    @property
    def git(self) -> Path:
        """The gitdir."""
        return self.folder / ".git"

    async def list_commits(self) -> list[str]:
        """List the commits that it has with all that they reach, the newest first."""
        return await list_held(self.git)


@contextlib.asynccontextmanager
async def hold_mirror(request: OpenMirror, environ: Mapping[str, str]) -> AsyncIterator[Mirror]:
    """Hold the mirror that *request* names, and make it if it is missing; while held, it is not removed."""
    top = find_user_folder(environ, "nodes")
    if top is None:
        raise Broken("this user has no home for mirrors of repositories; set XDG_STATE_HOME")
    if not KEY.fullmatch(request.key) or request.object_format not in FORMATS:
        raise BadInput("the coordinator names its repository in a way that this node does not know")
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = top / request.key
    lock = top / f"{request.key}.lock"
    async with hold_lock(top / "making.lock", timeout=LOCK_SECONDS):
        await remove_unused(top, keep=folder)
        if not (folder / ".git" / "HEAD").exists():
            await _make(folder, request)
        await _configure(folder, request)
        held = contextlib.AsyncExitStack()
        await held.enter_async_context(hold_lock(lock, shared=True, timeout=LOCK_SECONDS))
    async with held:
        os.utime(folder)
        yield Mirror(folder)


async def _make(folder: Path, request: OpenMirror) -> None:
    """Make it beside its place and rename it: a mirror is complete, or there is none."""
    aside = folder.with_name(f"{folder.name}.new")
    await remove_all(aside, folder)
    aside.mkdir(mode=0o700)
    await make_mirror(aside, request.object_format)
    aside.rename(folder)


async def _configure(folder: Path, request: OpenMirror) -> None:
    settings = {name: value for name, value in request.settings.items() if name in CHECKOUT_SETTINGS}
    branch = request.branch if BRANCH.fullmatch(request.branch) else ""
    await configure_mirror(folder / ".git", branch, settings)


async def remove_unused(top: Path, *, keep: Path, budget: int = BUDGET_BYTES) -> None:
    """Remove mirrors until the rest is within *budget*, the longest unused first; those in use and *keep* stay."""
    mirrors = sorted(
        (path for path in top.iterdir() if KEY.fullmatch(path.name)), key=lambda path: path.stat().st_mtime
    )
    sizes = {path: _measure(path) for path in mirrors}
    for path in mirrors:
        if sum(sizes.values()) <= budget:
            return
        if path != keep and not is_locked(path.with_name(f"{path.name}.lock")):
            gone = path.with_name(f"{path.name}.gone")
            path.rename(gone)
            await remove_all(gone)
            del sizes[path]


def _measure(folder: Path) -> int:
    """Sum up its packs and base checkouts; counting every file would take longer than a session."""
    paths = StatePaths.of(folder)
    packs = (*folder.glob(".git/objects/pack/*"), *paths.objects.glob("*/objects/pack/*"))
    return sum(pack.lstat().st_size for pack in packs) + sum(
        read_base_note(base)["bytes"] for base in paths.bases.glob("*-*")
    )
