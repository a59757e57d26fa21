"""Inspect all work of a run together, merged outside the repository, or check out one branch of it."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BadInput, Broken
from shoal.git.checkout import check_out, repository_locked
from shoal.git.commits import Commit
from shoal.git.conflicts import Clean
from shoal.git.merge import workbench
from shoal.git.refs import value
from shoal.git.run import git
from shoal.merge.candidates import ALL_ALLOWED, find_workers, order_candidates, preview_merge, select_candidates
from shoal.model.events import RequestTaken, SessionEnded, SnapshotKept
from shoal.model.repository import Repository
from shoal.model.results import RunReport
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.requests import ControlRequest, RequestKind, post, user_name, withdraw
from shoal.workspaces.remove import remove_all
from shoal.workspaces.worktree import admin_of, forget_worktree


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """The work of *sessions* as one commit, which exists only in *gitdir*."""

    gitdir: Path
    base: str
    commit: str
    sessions: tuple[str, ...]
    conflicting: tuple[str, ...]
    """Sessions that are not in it, because they conflict with those that are."""


@contextlib.asynccontextmanager
async def open_combination(repository: Repository, report: RunReport) -> AsyncIterator[Combination]:
    """Merge all work that succeeded, in the order of a merge; nothing is left in the repository."""
    candidates = select_candidates(await find_workers(repository, report), allowed=ALL_ALLOWED).candidates
    line = order_candidates(candidates, await preview_merge(repository, report.run, report.base, candidates))
    inside: list[str] = []
    outside: list[str] = []
    async with workbench(repository) as bench:
        tip = report.base
        for candidate in line:
            if not await bench.holds(tip, candidate.source):
                tried = await bench.try_merge(tip, candidate.source)
                if not isinstance(tried, Clean):
                    outside.append(candidate.session)
                    continue
                tip = bench.commit(Commit(tree=tried.tree, parents=(tip, candidate.source), message="combined\n"))
            inside.append(candidate.session)
        yield Combination(
            gitdir=bench.gitdir,
            base=report.base,
            commit=tip,
            sessions=tuple(inside),
            conflicting=tuple(outside),
        )


SNAPSHOT_SECONDS = 60.0
POLL_SECONDS = 0.05
SHORT = 12
"""How much of a tree's id is in the name of the folder of a snapshot."""


async def take_snapshot(paths: StatePaths, run: str, session: str) -> SnapshotKept | None:
    """Let the owner of *run* keep the files of *session* as they are now; `None` where that has ended meanwhile.

    The agent does not notice. Raises `BadInput` where no snapshot can be had.
    """
    request = ControlRequest(kind=RequestKind.SNAPSHOT, run=run, session=session, by=user_name())
    post(paths, request)
    try:
        async with asyncio.timeout(SNAPSHOT_SECONDS):
            kept = await _wait_for_snapshot(paths, request)
    except TimeoutError:
        why = "its agent has not started, or its work is being checked; try again later"
        raise BadInput(f"there was no snapshot of {session} in {SNAPSHOT_SECONDS:.0f} s: {why}") from None
    finally:
        withdraw(paths, request)
    if kept is not None and kept.failure:
        raise Broken(f"the files of {session} could not be kept: {kept.failure}")
    return kept


async def _wait_for_snapshot(paths: StatePaths, request: ControlRequest) -> SnapshotKept | None:
    seen = 0
    while True:
        is_alive = is_locked(paths.run_lock(request.run))  # asked first: an end is recorded before the lock goes
        for recorded in read_events(paths, request.run, seen):
            seen = recorded.seq
            match recorded.event:
                case SnapshotKept(request=request.id) as kept:
                    return kept
                case RequestTaken(request=request.id, refusal=refusal) if refusal:
                    return None
                case SessionEnded(session=request.session):
                    return None
        if not is_alive:
            raise BadInput(f"{request.run} ended before it took the request")
        await asyncio.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFolder:
    """A folder with the files of a session, and whether it was made just now."""

    path: Path
    is_new: bool


async def open_snapshot(repository: Repository, commit: str, name: str, path: Path | None = None) -> OpenedFolder:
    """Check the files of *commit* out, to be read only; git does not know that folder.

    Without *path*, it begins with *name*, and the same files have the same folder.
    """
    if path is None:
        tree = await value(repository, f"{commit}^{{tree}}")
        path = StatePaths.of(repository.home).root / "open" / f"{name}-{(tree or commit)[:SHORT]}"
        if path.is_dir():
            return OpenedFolder(path=path, is_new=False)
    elif path.is_dir() and any(path.iterdir()):
        raise BadInput(f"{path} is in use; name an empty or a new folder with --path")
    aside = path.with_name(f".{path.name}-{secrets.token_hex(3)}")  # a folder that is there has all files
    files = aside / "files"
    files.mkdir(parents=True)
    try:
        await check_out(repository, commit, tree=files, index=aside / "index", shadow=aside / "git")
        for folder, _, names in os.walk(files):
            for file in (Path(folder, name) for name in names):
                if not file.is_symlink():
                    file.chmod(file.stat().st_mode & ~0o222)
        files.rename(path)
    finally:
        await remove_all(aside)
    return OpenedFolder(path=path, is_new=True)


HEADS = "refs/heads/"


async def open_branch(repository: Repository, branch: str, path: Path) -> OpenedFolder:
    """Check *branch* out at *path*; where it is open already, say where. The worktree is the person's from then on."""
    commit = await value(repository, f"{HEADS}{branch}")
    if commit is None:
        raise BadInput(f"the branch {branch!r} does not exist; it was renamed or deleted")
    if (place := find_checkout(repository, branch)) is not None:
        if place.is_dir():
            return OpenedFolder(path=place, is_new=False)
        await forget_worktree(repository, place)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInput(f"{path} is in use; choose an empty or a new folder with --path")
    await _check_out(repository, commit, path, await _add_worktree(repository, branch, path))
    return OpenedFolder(path=path, is_new=True)


def find_checkout(repository: Repository, branch: str) -> Path | None:
    """Find the person's checkout or linked worktree that is on *branch*.

    An agent's own workspace, which stays if something could not be kept, does not count: what is there besides the
    files of the branch, such as the configuration of a nested repository, was never checked.
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


async def _add_worktree(repository: Repository, branch: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    async with repository_locked(repository.git):
        # Not checked out by git, which would run the user's hooks and filters on an agent's files.
        # Forced, because the agent's own workspace may still be on the branch.
        add = ("worktree", "add", "--quiet", "--no-checkout", "--force")
        await git(repository.git, *add, str(path), branch)
        admin = admin_of(repository, path)
    if admin is None:
        raise BadInput(f"git has no worktree at {path}; choose a path without symbolic links")
    return admin


async def _check_out(repository: Repository, commit: str, path: Path, admin: Path) -> None:
    shadow = admin / f"checkout-{secrets.token_hex(3)}"
    try:
        await check_out(repository, commit, tree=path, index=admin / "index", shadow=shadow)
        await remove_all(shadow)
    except BaseException:
        await forget_worktree(repository, path)
        await remove_all(path)
        raise
