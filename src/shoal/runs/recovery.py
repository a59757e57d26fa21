"""Recover what a killed or failed Shoal left: finish or undo it, and report what could not be imported."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import Broken, ShoalError, Unavailable
from shoal.git.checkpoints import drop_old_checkpoints, is_restored, restore_checkpoint
from shoal.git.diff import list_changed_paths
from shoal.git.imports import release_abandoned
from shoal.git.refs import ABSENT, Move, list_refs, move, unpin, unpin_abandoned, value
from shoal.git.run import git
from shoal.model.events import ClientHeard, Imported, RunEnded, SessionEnded
from shoal.model.policy import Layers
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.runs.killed_sessions import Unfinished, end_survivors, has_unfinished, list_unfinished, sweep_trials
from shoal.sessions.context import RunContext
from shoal.sessions.executable_config import flag_changes
from shoal.sessions.keep_work import KeptWork, add_seal_notes, find_secrets, keep_work
from shoal.sessions.open_session import prune
from shoal.sessions.saved_conversations import ConversationKey, keep_conversation, last_heard
from shoal.sessions.seal import SealRequest, seal_work
from shoal.sessions.session_dir import SessionDir
from shoal.store.fold import fold
from shoal.store.following import find_live
from shoal.store.killed_runs import record_lost_sessions
from shoal.store.lock import hold_lock, is_locked
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.requests import forget_dead
from shoal.store.run_state import SessionState
from shoal.workspaces import base_checkouts, object_stores
from shoal.workspaces.kind import Workspace
from shoal.workspaces.mount import list_mounts, mount_overlay, unmount
from shoal.workspaces.overlay import sealing
from shoal.workspaces.quota import IMAGE, open_disk_again
from shoal.workspaces.remove import clear_privileges, remove_all
from shoal.workspaces.worktree import admin_of, forget_worktree

WORKSPACE_DEPTH = 4  # workspaces, run, step, worker
MAX_RETRIES = 3
RETRIES = "retries"
"""A file in a session directory: how often importing its work has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFailure:
    """A session whose work could not be imported, and why."""

    run: str
    session: str
    why: str
    raw: str
    """Where its files are."""

    def __str__(self) -> str:
        return f"{self.session}: {self.why}; its files are in {self.raw}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a recovery did."""

    brought_in: tuple[WorkerResult, ...] = ()
    failures: tuple[RecoveryFailure, ...] = ()
    rebuilt: tuple[str, ...] = ()
    """What was rebuilt of a ledger that was lost."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Describe in sentences what could not be imported."""
        return tuple(f"could not import {failure}" for failure in self.failures)

    def __add__(self, other: "Recovery") -> "Recovery":
        return Recovery(brought_in=self.brought_in + other.brought_in, failures=self.failures + other.failures)


async def reconcile(context: RunContext, *, is_patient: bool = False) -> Recovery:
    """Finish or undo what no live run owns; idempotent, so it may itself be killed and run again at any point.

    Killed sessions are imported, and so are sessions whose work could not be kept when they ended: a few times by any
    command, and always by a command that *is_patient*.
    """
    await base_checkouts.sweep_bases(context.repository, context.paths.bases)
    await object_stores.sweep_stores(context.paths.objects)
    release_abandoned(context.repository)
    await sweep_trials(context.paths)
    await unpin_abandoned(context.repository, context.paths.runs)
    forget_dead(context.paths)
    await record_lost_sessions(context.paths, context.ledger, _list_session_dirs(context.paths))
    found = Recovery()
    for lock in sorted(context.paths.runs.glob("*.lock")):
        if lock.stem != context.run and not is_locked(lock):
            found += await _reconcile_if_owner(context, lock)
    await drop_old_checkpoints(context.repository)
    return found + await _retry_raw(context, is_patient=is_patient)


async def _reconcile_if_owner(context: RunContext, lock: Path) -> Recovery:
    """Own the dead run meanwhile: if two Shoals find it, one recovers it and the other skips it."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            held = await stack.enter_async_context(hold_lock(lock, timeout=0))
        except Broken:
            return Recovery()
        if lock.stem in find_live(context.paths):
            return Recovery()
        await context.ledger.claim(lock.stem)
        found = await reconcile_run(context, lock.stem)
        if not has_unfinished(context.paths, lock.stem):
            held.remove()
    return found


async def reconcile_run(context: RunContext, run: str) -> Recovery:
    """Import what is left of *run*, whose lock is held."""
    there = replace(context, run=run)
    found = Recovery()
    for unfinished in list_unfinished(context.paths, run):
        found += await _try_session(there, unfinished)
    state = fold(read_events(context.paths, run)).runs.get(run)
    if state is not None and not state.status.is_ended:
        await context.ledger.append(RunEnded(run=run, status=Status.INTERRUPTED, duration_seconds=0.0))
    if not list_unfinished(context.paths, run):
        await unpin(context.repository, run)
    return found


async def _retry_raw(context: RunContext, *, is_patient: bool) -> Recovery:
    """Try again to import sessions that ended without a branch, and whose files still exist."""
    left = _list_session_dirs(context.paths)
    if not left:  # otherwise the whole history would be read for nothing
        return Recovery()
    found = Recovery()
    for run in fold(read_events(context.paths)).runs.values():
        raw = [
            Unfinished(step.step, session)
            for step in run.steps.values()
            for session in step.sessions.values()
            if session.session in left and _is_raw(session)
        ]
        raw = [entry for entry in raw if is_patient or _retries(context, entry.session) < MAX_RETRIES]
        if raw and run.run != context.run and not is_locked(context.paths.run_lock(run.run)):
            found += await _retry_run(context, run.run, raw)
    return found


def _list_session_dirs(paths: StatePaths) -> set[str]:
    return {path.name for path in paths.session_dirs.iterdir()} if paths.session_dirs.is_dir() else set()


def _is_raw(session: SessionState) -> bool:
    return session.result is not None and session.result.raw is not None and session.result.commit is None


def _retries(context: RunContext, session: SessionState) -> int:
    try:
        return int((context.paths.session_dir(session.session) / RETRIES).read_text())
    except (OSError, ValueError):
        return 0


async def _retry_run(context: RunContext, run: str, raw: Sequence[Unfinished]) -> Recovery:
    lock, found = context.paths.run_lock(run), Recovery()
    async with contextlib.AsyncExitStack() as stack:
        try:
            held = await stack.enter_async_context(hold_lock(lock, timeout=0))
        except Broken:
            return found
        await context.ledger.claim(run)
        for entry in raw:
            found += await _try_session(replace(context, run=run), entry)
        held.remove()
    return found


async def _try_session(context: RunContext, unfinished: Unfinished) -> Recovery:
    """Import a session; a failure is reported, and does not affect other sessions."""
    session = unfinished.session
    session_dir = context.paths.session_dir(session.session)
    try:
        result = await _reconcile_session(context, unfinished.step, session)
    except (ShoalError, OSError, TimeoutError) as error:
        why = str(error) or type(error).__name__
    else:
        if result.raw is None or result.commit is not None:
            return Recovery(brought_in=(result,))
        why = result.error or "some of its files cannot be kept"
    with contextlib.suppress(OSError):
        (session_dir / RETRIES).write_text(str(_retries(context, session) + 1))
    files = session_dir
    with contextlib.suppress(Broken):
        files = _find_files(session, session_dir, _find_workspace(context, session))
    failure = RecoveryFailure(run=context.run, session=session.session, why=why, raw=str(files))
    return Recovery(failures=(failure,))


def _find_files(session: SessionState, session_dir: Path, path: Path) -> Path:
    """Say where the files of a session are: in its workspace, unless that shows layers or a disk of *session_dir*."""
    is_inside = session.strategy == "overlay" or (session_dir / IMAGE).exists() or not path.exists()
    return session_dir if is_inside else path


async def _reconcile_session(context: RunContext, step: str, session: SessionState) -> WorkerResult:
    session_dir = context.paths.session_dir(session.session)
    path = _find_workspace(context, session)
    for place in _list_places(context, session, session_dir):
        await end_survivors(place)
    heard = last_heard(context.paths, session.session) if session.result is None else None
    attempt = ConversationKey(
        run=context.run, step=step, visit=session.visit, index=session.index, attempt=session.attempt
    )
    folder = attempt.folder(context.paths) if heard is not None and heard.client_session else None
    work = await _salvage(context, session, session_dir, path, folder)
    for place in list_mounts(session_dir):
        unmount(place)
    result = work.on(
        replace(_result(session, work, heard), workspace=str(path)), _find_files(session, session_dir, path)
    )
    if work.must_stay:
        await clear_privileges(session_dir, path)
    else:
        await forget_worktree(context.repository, path)
        await remove_all(session_dir, path)
        prune(path, context.paths.workspaces)
    if session.result is None or work.failure is None:
        ended = SessionEnded(run=context.run, step=step, session=session.session, result=result)
        events: tuple[Imported | SessionEnded, ...] = (*_import_events(context, session, work), ended)
        for event in events:
            context.ledger.note(event)  # soon also written to its own log
        await context.ledger.append(*events)
    return result


def _result(session: SessionState, work: KeptWork, heard: ClientHeard | None) -> WorkerResult:
    """Return how the session ended; an earlier result stays, and now has the work."""
    failure = work.failure
    if session.result is None:
        restored = filter(is_restored, work.notes)
        return WorkerResult(
            index=session.index,
            session=session.session,
            status=Status.INTERRUPTED,
            purpose=session.purpose,
            error=failure or "; ".join(("Shoal was killed while this agent was running", *restored)),
            attempts=session.attempt,
            usage=heard.usage if heard else {},
            client_session=heard.client_session or None if heard else None,
        )
    if failure is not None:
        return replace(session.result, error=failure)
    error = f"its work was imported later; at first: {session.result.error}"
    return replace(session.result, status=Status.INTERRUPTED, error=error, raw=None)


def _find_workspace(context: RunContext, session: SessionState) -> Path:
    """Return the workspace below this repository, which may have moved since its path was recorded."""
    parts = Path(session.workspace).parts[-WORKSPACE_DEPTH:]
    if len(parts) != WORKSPACE_DEPTH or parts[0] != context.paths.workspaces.name or ".." in parts:
        raise Broken(f"{session.workspace} is not a workspace of this repository; check it")
    return context.paths.workspaces.joinpath(*parts[1:])


def _list_places(context: RunContext, session: SessionState, session_dir: Path) -> list[Path]:
    """Return the session directory, and where it was before the repository was moved."""
    before = Path(session.workspace).parents[WORKSPACE_DEPTH - 1]
    return (
        [session_dir] if before.exists() else [session_dir, before / context.paths.session_dirs.name / session.session]
    )


def _import_events(context: RunContext, session: SessionState, work: KeptWork) -> tuple[Imported, ...]:
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


async def _salvage(
    context: RunContext, session: SessionState, session_dir: Path, path: Path, conversation: Path | None
) -> KeptWork:
    """Seal what the killed session left; its ref says whether that was done already.

    If its client had begun a *conversation*, it is saved in that folder.
    """
    for place in list_mounts(path):
        unmount(place)
    here = await value(context.repository, f"refs/heads/{session.branch}")
    is_held = here not in (None, session.base) and await _is_sealed(context, session, here)
    known = await _describe_ref(context, session, here) if is_held and here is not None else KeptWork()
    try:
        async with open_disk_again(session_dir, None if session.strategy == "overlay" else path) as disk:
            directory = SessionDir(path=session_dir, disk=disk, session=session.session, port=0)
            if conversation is not None and directory.home.is_dir():
                with contextlib.suppress(
                    Broken, OSError
                ):  # without it, a new conversation is started with the same files
                    await asyncio.to_thread(keep_conversation, directory.home, session.conversations, conversation)
            is_made = directory.git.is_dir() and (path.is_dir() or session.strategy == "overlay")
            if is_made and directory.is_opened:
                return await _seal(context, session, directory, path, known)
            if not is_held:
                await _branch_dropped(context, session, here)
                last = await restore_checkpoint(context.repository, session.session, session.branch)
                if last is not None:
                    return replace(await _describe_ref(context, session, last.commit), notes=(last.note,))
            return known
    except Unavailable:
        raise
    except (ShoalError, OSError, TimeoutError) as error:
        return replace(known, failure=str(error) or "it took too long to seal")


async def _describe_ref(context: RunContext, session: SessionState, commit: str) -> KeptWork:
    """Describe what a ref holds already: its Shoal was killed before it could record that."""
    paths = await list_changed_paths(context.repository.git, session.base, commit)
    others = await list_refs(context.repository, f"refs/shoal/kept/{session.branch.removeprefix('agent/')}")
    return KeptWork(
        branch=session.branch,
        commit=commit,
        files_changed=len(paths),
        refs=tuple(others),
        flags=await flag_changes(context.repository.git, session.base, commit, paths, context.executable),
        secrets=await find_secrets(context, session.base, commit),
    )


async def _seal(
    context: RunContext, session: SessionState, directory: SessionDir, path: Path, known: KeptWork
) -> KeptWork:
    """Bring the work to its branch; if that was done, only find out again what could not be kept and must stay."""
    message = f"{session.branch.split('/')[1]}: work of an interrupted agent\n\nShoal-Session: {session.session}\n"
    async with (
        base_checkouts.base_ready(context.repository, session.base, context.paths.bases) as base,
        _open_killed_run(replace(context, base=base), session, directory.disk, path) as workspace,
    ):
        there = replace(context, base=base)
        if known.commit is None:
            request = SealRequest(message=message, has_history=True)
            return await keep_work(there, workspace, directory, branch=session.branch, request=request)
        seal = await seal_work(there, workspace, directory, SealRequest(message=message, has_history=False))
        return add_seal_notes(known, seal)


async def _is_sealed(context: RunContext, session: SessionState, commit: str | None) -> bool:
    """Return whether *commit* has our mark: in a linked worktree, the host may have committed too."""
    if session.strategy == "overlay" or commit is None:
        return True
    done = await git(context.repository.git, "log", "-1", "--format=%B", commit)
    return f"Shoal-Session: {session.session}" in done.stdout.decode(errors="replace").splitlines()


async def _branch_dropped(context: RunContext, session: SessionState, here: str | None) -> None:
    if here == session.base and session.strategy == "worktree":
        await forget_worktree(context.repository, _find_workspace(context, session))
        await move(context.repository, [Move(f"refs/heads/{session.branch}", ABSENT, here)])


@contextlib.asynccontextmanager
async def _open_killed_run(
    context: RunContext, session: SessionState, disk: Path, path: Path
) -> AsyncIterator[Workspace]:
    """Open a killed session's files read-only."""
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
    # Root's overlay layers mark what they hide with attributes that only a mount by root can see.
    try:
        mount_overlay(layers)
    except Broken as error:
        raise Unavailable("the overlay of a killed session", str(error), "run Shoal as the user who ran it") from error
    try:
        yield workspace
    finally:
        unmount(path)
