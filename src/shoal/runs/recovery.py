"""Reconciling: what a killed Shoal left behind is brought in as far as it can be, and the rest removed."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import Broken, ShoalError, Unavailable
from shoal.git.difference import list_changed_paths
from shoal.git.imports import release_abandoned
from shoal.git.refs import ABSENT, Move, list_refs, move, unpin, unpin_abandoned, value
from shoal.git.run import git
from shoal.limits.members import kill_each
from shoal.model.events import Imported, RunEnded, SessionEnded
from shoal.model.policy import Layers
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.sessions.context import RunContext
from shoal.sessions.executable_config import flag_changes
from shoal.sessions.keep_work import KeptWork, add_seal_notes, keep_work
from shoal.sessions.open_session import prune
from shoal.sessions.seal import SealRequest, seal_work
from shoal.sessions.session_dir import SessionDir
from shoal.store.fold import RunState, SessionState, fold
from shoal.store.lock import hold_lock, is_locked
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, read_unended
from shoal.store.requests import forget_dead
from shoal.workspaces import base as bases
from shoal.workspaces import objects
from shoal.workspaces.kind import Workspace
from shoal.workspaces.mount import list_mounts, mount_overlay, unmount
from shoal.workspaces.overlay import sealing
from shoal.workspaces.quota import open_disk_again
from shoal.workspaces.remove import clear_privileges, remove_all
from shoal.workspaces.worktree import admin_of, forget_worktree


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A session that was begun, and its step."""

    step: str
    session: SessionState


def list_unfinished(paths: StatePaths, run: str) -> list[Unfinished]:
    """List the sessions whose work may still lie where their agents left it."""
    try:
        state = fold(read_unended(paths, run)).runs.get(run)
    except Broken:
        return []
    return [
        Unfinished(step.step, session)
        for step in (state.steps.values() if state else ())
        for session in step.sessions.values()
        if session.result is None
    ]


PROGRAM = "bwrap"
SECONDS = 10.0
PAUSE = 0.01


async def end_survivors(box: Path) -> None:
    """Kill the sandbox that shows *box*, and wait until it is gone; raise `Broken` where it stays.

    Its first process cannot be changed from inside, so the arguments that it was started with are its own.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            while find_sandboxes(box):
                kill_each(lambda: find_sandboxes(box))
                await asyncio.sleep(PAUSE)
            return
    raise Broken(f"a sandbox of a killed run that shows {box} cannot be ended")


def find_sandboxes(box: Path) -> list[int]:
    """Find the processes of bubblewrap that were told to show something in *box*."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _shows(name, os.fsencode(box))]


def _shows(pid: str, box: bytes) -> bool:
    with contextlib.suppress(OSError):  # it is gone, or another user's
        if Path(f"/proc/{pid}/exe").readlink().name.removesuffix(" (deleted)") != PROGRAM:
            return False
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return any(word == box or word.startswith(box + b"/") for word in words)
    return False


WORKSPACE_DEPTH = 3  # run, step, worker


async def sweep(context: RunContext) -> list[WorkerResult]:
    """Bring in the sessions of runs whose owner is dead; idempotent, so it may itself be killed and run again."""
    await bases.sweep_bases(context.repository, context.paths.bases)
    await objects.sweep_stores(context.paths.objects)
    release_abandoned(context.repository)
    await unpin_abandoned(context.repository, context.paths.runs)
    forget_dead(context.paths)
    found: list[WorkerResult] = []
    for lock in sorted(context.paths.runs.glob("*.lock")):
        if lock.stem != context.run and not is_locked(lock):
            found += await _sweep_if_owner(context, lock)
    return found


async def _sweep_if_owner(context: RunContext, lock: Path) -> list[WorkerResult]:
    """Own the dead run while it is swept: of two Shoals that find it, one works and the other passes by."""
    try:
        async with hold_lock(lock, timeout=0):
            results = await run_swept(context, lock.stem)
            if not list_unfinished(context.paths, lock.stem):
                lock.unlink(missing_ok=True)
    except Broken:
        return []
    return results


async def run_swept(context: RunContext, run: str) -> list[WorkerResult]:
    """Bring in what is left of *run*, whose lock is held."""
    there = replace(context, run=run)
    results = []
    for one in list_unfinished(context.paths, run):
        # What needs another wall or another user is left for who has it.
        with contextlib.suppress(Unavailable):
            results.append(await _session_swept(there, one.step, one.session))
    state = fold(read_events(context.paths, run)).runs.get(run)
    if state is not None and not state.status.is_ended:
        await context.ledger.append(RunEnded(run=run, status=_status(state), duration_seconds=0.0))
    if not list_unfinished(context.paths, run):
        await unpin(context.repository, run)
    return results


def _status(state: RunState) -> Status:
    done = [one.result for step in state.steps.values() for one in step.sessions.values()]
    return Status.DEGRADED if any(one and one.status.is_good for one in done) else Status.LOST


async def _session_swept(context: RunContext, step: str, session: SessionState) -> WorkerResult:
    box = context.paths.box(session.session)
    path = _assert_ours(context, Path(session.workspace))
    await end_survivors(box)
    work = await _salvage(context, session, box, path)
    for place in list_mounts(box):
        unmount(place)
    error = work.failure or "Shoal was killed while this agent worked"
    result = WorkerResult(index=session.index, session=session.session, status=Status.LOST, error=error)
    result = work.on(replace(result, workspace=session.workspace), box)
    if work.must_stay:
        await clear_privileges(box, path)
    else:
        await forget_worktree(context.repository, path)
        await remove_all(box, path)
        prune(path, context.paths.workspaces)
    ended = SessionEnded(run=context.run, step=step, session=session.session, result=result)
    await context.ledger.append(*_imported_events(context, session, work), ended)
    return result


def _assert_ours(context: RunContext, path: Path) -> Path:
    """Let nothing be unmounted, sealed or removed that is not a workspace of ours, whatever a ledger says."""
    parts = path.parts[len(context.paths.workspaces.parts) :]
    if not path.is_relative_to(context.paths.workspaces) or len(parts) != WORKSPACE_DEPTH or ".." in parts:
        raise Unavailable("what a killed session left", f"{path} is no workspace of this repository", "look at it")
    return path


def _imported_events(context: RunContext, session: SessionState, work: KeptWork) -> tuple[Imported, ...]:
    if work.branch is None or work.commit is None:
        return ()
    return (
        Imported(
            run=context.run,
            session=session.session,
            branch=work.branch,
            commit=work.commit,
            files_changed=work.files_changed,
        ),
    )


async def _salvage(context: RunContext, session: SessionState, box: Path, path: Path) -> KeptWork:
    """Seal what the killed session left; its ref says whether that had been done already."""
    for place in list_mounts(path):
        unmount(place)
    here = await value(context.repository, f"refs/heads/{session.branch}")
    is_held = here not in (None, session.base) and await _is_sealed(context, session, here)
    known = await _describe_ref(context, session, here) if is_held and here is not None else KeptWork()
    try:
        async with open_disk_again(box, None if session.strategy == "overlay" else path) as disk:
            session_dir = SessionDir(box=box, disk=disk, session=session.session, port=0)
            if session_dir.git.is_dir() and (path.is_dir() or session.strategy == "overlay"):
                return await _seal(context, session, session_dir, path, known)
            if not is_held:
                await _branch_dropped(context, session, here)
            return known
    except Unavailable:
        raise
    except (ShoalError, OSError, TimeoutError) as error:
        return replace(known, failure=str(error) or "it took too long to seal")


async def _describe_ref(context: RunContext, session: SessionState, commit: str) -> KeptWork:
    """Tell what a ref holds already: its Shoal was killed before it could record that."""
    paths = await list_changed_paths(context.repository.git, session.base, commit)
    others = await list_refs(context.repository, f"refs/shoal/kept/{session.branch.removeprefix('agent/')}")
    return KeptWork(
        branch=session.branch,
        commit=commit,
        files_changed=len(paths),
        refs=tuple(others),
        flags=await flag_changes(context.repository.git, session.base, commit, paths, context.executable),
    )


async def _seal(
    context: RunContext, session: SessionState, session_dir: SessionDir, path: Path, known: KeptWork
) -> KeptWork:
    """Bring the work to its branch; where that was done, only ask again what could not be kept, and so must stay."""
    message = f"{session.branch.split('/')[1]}: work of an agent that was cut off\n\nShoal-Session: {session.session}\n"
    async with (
        bases.base_ready(context.repository, session.base, context.paths.bases) as base,
        _reopened(replace(context, base=base), session, session_dir.disk, path) as workspace,
    ):
        there = replace(context, base=base)
        if known.commit is None:
            request = SealRequest(message=message, has_history=True)
            return await keep_work(there, workspace, session_dir, branch=session.branch, request=request)
        seal = await seal_work(there, workspace, session_dir, SealRequest(message=message, has_history=False))
        return add_seal_notes(known, seal)


async def _is_sealed(context: RunContext, session: SessionState, commit: str | None) -> bool:
    """In a linked worktree the host may have committed too: only our own mark says that all was brought in."""
    if session.strategy == "overlay" or commit is None:
        return True
    done = await git(context.repository.git, "log", "-1", "--format=%B", commit)
    return f"Shoal-Session: {session.session}" in done.stdout.decode(errors="replace").splitlines()


async def _branch_dropped(context: RunContext, session: SessionState, here: str | None) -> None:
    if here == session.base and session.strategy == "worktree":
        await forget_worktree(context.repository, Path(session.workspace))
        await move(context.repository, [Move(f"refs/heads/{session.branch}", ABSENT, here)])


@contextlib.asynccontextmanager
async def _reopened(context: RunContext, session: SessionState, disk: Path, path: Path) -> AsyncIterator[Workspace]:
    """Look at a killed session's files again, read-only."""
    if session.strategy != "overlay":
        admin = admin_of(context.repository, path) if session.strategy == "worktree" else None
        index = admin / "index" if admin is not None else context.base.index
        yield Workspace(path=path, index=index, changes=path)
        return
    path.mkdir(parents=True, exist_ok=True)
    layers = sealing(Layers(lower=context.base.trees, upper=disk / "upper", work=disk / "work", target=path))
    workspace = Workspace(path=path, index=context.base.index, changes=disk / "upper")
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
