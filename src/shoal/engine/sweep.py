"""Reconciling: what a killed Shoal left behind is brought in as far as it can be, and the rest removed."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from shoal.engine.keep import Kept, flagged, kept, told
from shoal.engine.lease import Lease
from shoal.engine.pins import abandoned, unpinned
from shoal.engine.quarters import prune
from shoal.engine.seal import Wish, sealed
from shoal.engine.site import Site
from shoal.engine.unfinished import unfinished
from shoal.errors import Broken, ShoalError, Unavailable
from shoal.git.difference import changed_paths
from shoal.git.imports import quarantines_left
from shoal.git.refs import ABSENT, Move, listed, move, value
from shoal.git.run import git
from shoal.model.events import Imported, RunEnded, SessionEnded
from shoal.model.policy import Layers
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.store.fold import RunState, SessionState, fold
from shoal.store.lock import held, is_locked
from shoal.store.read import events
from shoal.store.requests import forget_dead
from shoal.workspaces import base as bases
from shoal.workspaces.kind import Workspace
from shoal.workspaces.mount import mount_overlay, mounted_below, unmount
from shoal.workspaces.overlay import sealing
from shoal.workspaces.quota import remounted
from shoal.workspaces.remove import removed
from shoal.workspaces.worktree import admin_of, forgotten

WORKSPACE_DEPTH = 3  # run, step, worker


async def sweep(site: Site) -> list[WorkerResult]:
    """Bring in the sessions of runs whose owner is dead; idempotent, so it may itself be killed and run again."""
    await bases.swept(site.repository, site.paths.bases)
    if left := quarantines_left(site.repository):
        await removed(*left)
    await abandoned(site.repository, site.paths.runs)
    forget_dead(site.paths)
    found: list[WorkerResult] = []
    for lock in sorted(site.paths.runs.glob("*.lock")):
        if lock.stem != site.run and not is_locked(lock):
            found += await _owned_and_swept(site, lock)
    return found


async def _owned_and_swept(site: Site, lock: Path) -> list[WorkerResult]:
    """Own the dead run while it is swept: of two Shoals that find it, one works and the other passes by."""
    try:
        async with held(lock, timeout=0):
            results = await run_swept(site, lock.stem)
            if not unfinished(site.paths, lock.stem):
                lock.unlink(missing_ok=True)
    except Broken:
        return []
    return results


async def run_swept(site: Site, run: str) -> list[WorkerResult]:
    """Bring in what is left of *run*, whose lock is held."""
    there = replace(site, run=run)
    results = []
    for one in unfinished(site.paths, run):
        # What needs another wall or another user is left for who has it.
        with contextlib.suppress(Unavailable):
            results.append(await _session_swept(there, one.step, one.session))
    state = fold(events(site.paths, run)).runs.get(run)
    if state is not None and not state.status.is_ended:
        await site.ledger.append(RunEnded(run=run, status=_status(state), duration_seconds=0.0))
    if not unfinished(site.paths, run):
        await unpinned(site.repository, run)
    return results


def _status(state: RunState) -> Status:
    done = [one.result for step in state.steps.values() for one in step.sessions.values()]
    return Status.DEGRADED if any(one and one.status.is_good for one in done) else Status.LOST


async def _session_swept(site: Site, step: str, session: SessionState) -> WorkerResult:
    box = site.paths.box(session.session)
    path = _assert_ours(site, Path(session.workspace))
    work = await _salvaged(site, session, box, path)
    for place in mounted_below(box):
        unmount(place)
    error = work.failure or "Shoal was killed while this agent worked"
    result = WorkerResult(index=session.index, session=session.session, status=Status.LOST, error=error)
    result = work.on(replace(result, workspace=session.workspace), box)
    if not work.must_stay:
        await forgotten(site.repository, path)
        await removed(box, path)
        prune(path, site.paths.workspaces)
    ended = SessionEnded(run=site.run, step=step, session=session.session, result=result)
    await site.ledger.append(*_imported(site, session, work), ended)
    return result


def _assert_ours(site: Site, path: Path) -> Path:
    """Let nothing be unmounted, sealed or removed that is not a workspace of ours, whatever a ledger says."""
    parts = path.parts[len(site.paths.workspaces.parts) :]
    if not path.is_relative_to(site.paths.workspaces) or len(parts) != WORKSPACE_DEPTH or ".." in parts:
        raise Unavailable("what a killed session left", f"{path} is no workspace of this repository", "look at it")
    return path


def _imported(site: Site, session: SessionState, work: Kept) -> tuple[Imported, ...]:
    if work.branch is None or work.commit is None:
        return ()
    return (
        Imported(
            run=site.run,
            session=session.session,
            branch=work.branch,
            commit=work.commit,
            files_changed=work.files_changed,
        ),
    )


async def _salvaged(site: Site, session: SessionState, box: Path, path: Path) -> Kept:
    """Seal what the killed session left; its ref says whether that had been done already."""
    for place in mounted_below(path):
        unmount(place)
    here = await value(site.repository, f"refs/heads/{session.branch}")
    is_held = here not in (None, session.base) and await _is_sealed(site, session, here)
    known = await _held(site, session, here) if is_held and here is not None else Kept()
    try:
        async with remounted(box, None if session.strategy == "overlay" else path) as disk:
            lease = Lease(box=box, disk=disk, session=session.session, port=0)
            if lease.git.is_dir() and (path.is_dir() or session.strategy == "overlay"):
                return await _sealed(site, session, lease, path, known)
            if not is_held:
                await _branch_dropped(site, session, here)
            return known
    except Unavailable:
        raise
    except (ShoalError, OSError, TimeoutError) as error:
        return replace(known, failure=str(error) or "it took too long to seal")


async def _held(site: Site, session: SessionState, commit: str) -> Kept:
    """Tell what a ref holds already: its Shoal was killed before it could record that."""
    paths = await changed_paths(site.repository.git, session.base, commit)
    others = await listed(site.repository, f"refs/shoal/kept/{session.branch.removeprefix('agent/')}")
    return Kept(
        branch=session.branch,
        commit=commit,
        files_changed=len(paths),
        refs=tuple(others),
        executable=await flagged(paths),
    )


async def _sealed(site: Site, session: SessionState, lease: Lease, path: Path, known: Kept) -> Kept:
    """Bring the work to its branch; where that was done, only ask again what could not be kept, and so must stay."""
    message = f"{session.branch.split('/')[1]}: work of an agent that was cut off\n\nShoal-Session: {session.session}\n"
    async with (
        bases.base_ready(site.repository, session.base, site.paths.bases) as base,
        _reopened(replace(site, base=base), session, lease.disk, path) as workspace,
    ):
        there = replace(site, base=base)
        if known.commit is None:
            return await kept(there, workspace, lease, branch=session.branch, message=message, has_history=True)
        seal = await sealed(there, workspace, lease, Wish(message=message, has_history=False, squash=True))
        return told(known, seal)


async def _is_sealed(site: Site, session: SessionState, commit: str | None) -> bool:
    """In a linked worktree the host may have committed too: only our own mark says that all was brought in."""
    if session.strategy == "overlay" or commit is None:
        return True
    done = await git(site.repository.git, "log", "-1", "--format=%B", commit)
    return f"Shoal-Session: {session.session}" in done.stdout.decode(errors="replace").splitlines()


async def _branch_dropped(site: Site, session: SessionState, here: str | None) -> None:
    if here == session.base and session.strategy == "worktree":
        await forgotten(site.repository, Path(session.workspace))
        await move(site.repository, [Move(f"refs/heads/{session.branch}", ABSENT, here)])


@contextlib.asynccontextmanager
async def _reopened(site: Site, session: SessionState, disk: Path, path: Path) -> AsyncIterator[Workspace]:
    """Look at a killed session's files again, read-only."""
    if session.strategy != "overlay":
        admin = admin_of(site.repository, path) if session.strategy == "worktree" else None
        index = admin / "index" if admin is not None else site.base.index
        yield Workspace(path=path, index=index, changes=path)
        return
    path.mkdir(parents=True, exist_ok=True)
    layers = sealing(Layers(lower=site.base.trees, upper=disk / "upper", work=disk / "work", target=path))
    workspace = Workspace(path=path, index=site.base.index, changes=disk / "upper")
    if not session.by_host:
        workspace.sealing = layers
        yield workspace
        return
    # Root's layers mark what they hide by attributes that only a mount of root's sees.
    try:
        mount_overlay(layers)
    except Broken as error:
        raise Unavailable("the overlay of a killed session", str(error), "run Shoal as the user who ran it") from error
    try:
        yield workspace
    finally:
        unmount(path)
