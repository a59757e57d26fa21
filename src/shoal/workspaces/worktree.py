"""Worktree: a real linked `git worktree` on the agent's branch, made under one lock, recycled when large."""

import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import Broken
from shoal.git.checkout import check_out, repository_locked
from shoal.git.refs import ABSENT, Move, move
from shoal.git.run import git
from shoal.model.repository import Repository
from shoal.workspaces.kind import Workspace, WorkspaceHost, WorkspaceOrder
from shoal.workspaces.remove import remove_all

# Below this, `git worktree add` (17 ms) is as fast as recycling; at 5,000 files recycling is ten times faster.
POOLED_ABOVE_FILES = 500
POOL_SIZE = 8
STAYS = True


@dataclass(frozen=True, slots=True)
class Worktree:
    """*pool* is the folder of recycled worktrees."""

    pool: Path
    has_layers: bool = field(default=False, init=False, repr=False)
    mounts_on_host: bool = field(default=False, init=False, repr=False)
    links_branch: bool = field(default=True, init=False, repr=False)
    leaves_patch: bool = field(default=False, init=False, repr=False)

    @property
    def name(self) -> str:
        return "worktree"

    def as_unlinked(self) -> "Worktree":
        """Return itself: the host sees the files in any case."""
        return self

    @contextlib.asynccontextmanager
    async def open(self, order: WorkspaceOrder) -> AsyncIterator[Workspace]:
        """Add a linked worktree or reuse one; only the adding is under the lock, not the checkout."""
        admin = await self._link(order)
        workspace = Workspace(path=order.path, index=admin / "index", changes=order.path)
        workspace.can_recycle = order.base.files > POOLED_ABOVE_FILES and not order.has_own_disk
        try:
            shadow = order.session_dir / f"checkout-{secrets.token_hex(3)}"
            await check_out(order.repository, order.base.commit, tree=order.path, index=admin / "index", shadow=shadow)
        except BaseException:
            await self._close(order, admin, workspace)
            await move(order.repository, [Move(f"refs/heads/{order.branch}", ABSENT, order.base.commit)])
            raise
        try:
            yield workspace
        finally:
            if not workspace.keep:
                # What cannot be removed now is left for `clean`; it does not affect how the session ended.
                with contextlib.suppress(Broken):
                    await self._close(order, admin, workspace)

    async def _link(self, order: WorkspaceOrder) -> Path:
        # The folder itself, empty: the end of another session removes empty parents, also while git adds this one.
        order.path.mkdir(parents=True, exist_ok=True)
        async with repository_locked(order.repository.git):
            return (None if order.has_own_disk else await self._take_from_pool(order)) or await _add_worktree(order)

    async def _take_from_pool(self, order: WorkspaceOrder) -> Path | None:
        """Take a worktree from the pool: a rename, three small files and a branch."""
        for note in sorted(self.pool.glob("*.json")):
            admin, warm = _read_note(note), note.with_suffix("")
            note.unlink()
            if admin is None or not admin.is_dir() or not warm.is_dir() or warm.is_symlink():
                continue
            (admin / "gitdir").write_text(f"{order.path}/.git\n", errors="surrogateescape")
            warm.rename(order.path)
            await _write_pointer(order.path / ".git", admin)
            await move(order.repository, [Move(f"refs/heads/{order.branch}", order.base.commit, ABSENT)])
            await git(admin, "symbolic-ref", "HEAD", f"refs/heads/{order.branch}")
            return admin
        return None

    async def _close(self, order: WorkspaceOrder, admin: Path, workspace: Workspace) -> None:
        async with repository_locked(order.repository.git):
            if workspace.recycled is not None and len(list(self.pool.glob("*.json"))) < POOL_SIZE:
                await self._return_to_pool(order, admin, workspace.recycled)
                return
            await _unlink(order.repository, admin)
        if not order.has_own_disk:
            await remove_all(order.path)

    async def _return_to_pool(self, order: WorkspaceOrder, admin: Path, index: Path) -> None:
        place = self.pool / secrets.token_hex(4)
        self.pool.mkdir(exist_ok=True)
        await git(admin, "update-ref", "--no-deref", "HEAD", order.base.commit)
        index.replace(admin / "index")
        order.path.rename(place)
        (admin / "gitdir").write_text(f"{place}/.git\n", errors="surrogateescape")
        # Written to a temporary file and renamed: a note is complete, or there is none.
        aside = place.with_suffix(".new")
        aside.write_text(json.dumps({"admin": str(admin)}))
        aside.rename(place.with_suffix(".json"))


async def build(host: WorkspaceHost) -> Worktree:
    """Return it: every repository can have linked worktrees."""
    return Worktree(host.pool)


def _read_note(note: Path) -> Path | None:
    try:
        return Path(json.loads(note.read_text())["admin"])
    except (ValueError, KeyError, TypeError, OSError):
        return None


async def _write_pointer(pointer: Path, admin: Path) -> None:
    """Rewrite the pointer, which an agent may have replaced."""
    if pointer.is_symlink() or pointer.is_file():
        pointer.unlink()
    else:
        await remove_all(pointer)
    pointer.write_text(f"gitdir: {admin}\n", errors="surrogateescape")


async def _add_worktree(order: WorkspaceOrder) -> Path:
    await git(
        order.repository.git,
        *("worktree", "add", "--quiet", "--no-checkout", "--no-track", "--lock", "--reason", "a Shoal session"),
        *("-b", order.branch, str(order.path), order.base.commit),
    )
    return Path((order.path / ".git").read_text(errors="surrogateescape").strip().removeprefix("gitdir: "))


async def _unlink(repository: Repository, admin: Path) -> None:
    """Forget a linked worktree by removing its admin folder, which no agent can see."""
    await remove_all(admin)
    with contextlib.suppress(OSError):
        (repository.git / "worktrees").rmdir()


def admin_of(repository: Repository, path: Path) -> Path | None:
    """Find git's own folder for the linked worktree at *path*."""
    for pointer in (repository.git / "worktrees").glob("*/gitdir"):
        if pointer.read_text(errors="surrogateescape").strip() == f"{path}/.git":
            return pointer.parent
    return None


async def forget_worktree(repository: Repository, path: Path) -> None:
    """Forget the linked worktree at *path*, if git knows one there (after a kill); the caller removes its files."""
    async with repository_locked(repository.git):
        if (admin := admin_of(repository, path)) is not None:
            await _unlink(repository, admin)
