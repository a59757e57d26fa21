"""Opening an agent's branch for a person: a linked worktree, made without running anything of anybody's."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BadInput
from shoal.git.checkout import check_out
from shoal.git.lock import repository_locked
from shoal.git.refs import value
from shoal.git.run import git
from shoal.model.repository import Repository
from shoal.store.paths import StatePaths
from shoal.workspaces.remove import removed
from shoal.workspaces.worktree import admin_of, forgotten

HEADS = "refs/heads/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A worktree of a branch, and whether it was made just now."""

    path: Path
    is_new: bool


async def open_branch(repository: Repository, branch: str, path: Path) -> Opened:
    """Check *branch* out at *path*; where it is open already, say where. The worktree is the person's from then on."""
    commit = await value(repository, f"{HEADS}{branch}")
    if commit is None:
        raise BadInput(f"the branch {branch!r} is gone; it was renamed or deleted")
    if (place := opened_at(repository, branch)) is not None:
        if place.is_dir():
            return Opened(path=place, is_new=False)
        await forgotten(repository, place)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInput(f"{path} is in use; name an empty or a new folder with --path")
    await _filled(repository, commit, path, await _added(repository, branch, path))
    return Opened(path=path, is_new=True)


def opened_at(repository: Repository, branch: str) -> Path | None:
    """Find the checkout or the linked worktree of the person's that is on *branch*.

    An agent's own workspace, which stays where something could not be kept, is none: what lies there beside the files
    of the branch, such as the configuration of a nested repository, was never looked at.
    """
    wanted = f"ref: {HEADS}{branch}"
    workspaces = StatePaths.of(repository.home).workspaces
    if _first_line(repository.git / "HEAD") == wanted:
        return repository.home
    for head in (repository.git / "worktrees").glob("*/HEAD"):
        place = Path(_first_line(head.with_name("gitdir"))).parent
        if _first_line(head) == wanted and not place.is_relative_to(workspaces):
            return place
    return None


def _first_line(file: Path) -> str:
    return file.read_text(errors="surrogateescape").strip()


async def _added(repository: Repository, branch: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    async with repository_locked(repository.git):
        # Not checked out by git: that would run the user's hooks and filters on an agent's files.
        # Forced, because the agent's own workspace may still be on the branch.
        add = ("worktree", "add", "--quiet", "--no-checkout", "--force")
        await git(repository.git, *add, str(path), branch)
        admin = admin_of(repository, path)
    if admin is None:
        raise BadInput(f"git does not know the worktree at {path}; name a folder without a link in its path")
    return admin


async def _filled(repository: Repository, commit: str, path: Path, admin: Path) -> None:
    shadow = admin / f"checkout-{secrets.token_hex(3)}"
    try:
        await check_out(repository, commit, tree=path, index=admin / "index", shadow=shadow)
        await removed(shadow)
    except BaseException:
        await forgotten(repository, path)
        await removed(path)
        raise
