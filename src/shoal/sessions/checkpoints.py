"""Checkpoints: an agent's files are kept on refs of ours while it works, so that a machine that dies costs minutes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from shoal.errors import FAULTS, Broken, first_error
from shoal.git.checkpoints import FOLDER, SNAPSHOT, Checkpoint, list_checkpoints
from shoal.git.imports import ImportRefused, import_pack, release
from shoal.git.refs import ABSENT, Move, move, value
from shoal.model.activity import Act
from shoal.model.events import AgentActed, CheckpointKept, SnapshotKept
from shoal.proc.free_space import above_floor
from shoal.sessions.keep_work import find_secrets
from shoal.sessions.reuse import Fingerprint, fingerprint
from shoal.sessions.seal import Seal, SealRequest, seal_work
from shoal.sessions.worker import Session
from shoal.workspaces.overlay import is_empty

MOST_KEPT = 24
"""Of one session: two hours at the usual interval. Older ones go."""


@contextlib.asynccontextmanager
async def keep_checkpoints(session: Session) -> AsyncIterator[None]:
    """Keep a checkpoint every so often, and a snapshot when a person asks, as long as the agent of *session* works."""
    seconds = session.context.checkpoint_seconds
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_take_snapshots(session))]
            if seconds is not None:
                tasks.append(group.create_task(_keep_all(session, seconds)))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Last:
    """What the last checkpoint has, so that the next one is made only of something else."""

    seen: Fingerprint | None = None
    tree: str = ""
    failure: str = ""


async def _keep_all(session: Session, seconds: float) -> None:
    """Keep one after the other; one that fails is noted in the session's log, and is no failure of the agent."""
    last = _Last()
    while True:
        await asyncio.sleep(seconds)
        try:
            async with session.context.checkpoint_turn:
                last = await _keep_next(session, last)
        except FAULTS as error:
            why = str(error) or type(error).__name__
            if why != last.failure:
                _note_failure(session, why)
            last = replace(last, failure=why)


def _note_failure(session: Session, why: str) -> None:
    context = session.context
    text = context.mask.text(f"no checkpoint was made: {why}")
    context.ledger.note(AgentActed(run=context.run, session=session.id, act=Act.TROUBLE, text=text))


async def _keep_next(session: Session, last: _Last) -> _Last:
    """Keep the files as they are now, if they are not as in the last checkpoint."""
    seen = fingerprint(session.workspace.changes)  # of more than a few hundred files it says nothing: the seal compares
    if seen is not None and seen == last.seen:
        return last
    commit = await _take_files(session, last.tree, partial(_record, session))
    tree = None if commit is None else await value(session.context.repository, f"{commit}^{{tree}}")
    return _Last(seen=seen, tree=tree or last.tree)


async def _take_files(session: Session, known_tree: str, hold: Callable[[str], Awaitable[None]]) -> str | None:
    """Seal the files as they are now, let *hold* hold their commit by a ref, and give it; `None` without changes."""
    context, workspace = session.context, session.workspace
    if workspace.is_overlay and is_empty(workspace.changes):
        return None
    client = session.worker.adapter.client
    request = SealRequest(
        message=session.worker.message(context.mask.text),
        has_history=False,
        scratch_files=client.scratch_files if client else (),
        known_tree=known_tree,
    )
    seal = await seal_work(context, workspace, session.directory, request)
    try:
        return await _import(session, seal, hold)
    finally:
        if seal.pack is not None:
            seal.pack.unlink(missing_ok=True)


async def _import(session: Session, seal: Seal, hold: Callable[[str], Awaitable[None]]) -> str | None:
    """Take what was sealed into the repository, and give its commit; `None` where there is nothing new."""
    context, repository = session.context, session.context.repository
    if seal.failure is not None:
        raise Broken(seal.failure)
    if seal.tip is None or seal.pack is None:
        return None
    base, lender = context.base.commit, context.base.objects
    async with above_floor(context.paths.root):
        taken = await import_pack(
            repository, seal.pack, base=base, tips=(seal.tip,), lender=lender, bounds=context.bounds
        )
    if isinstance(taken, ImportRefused):
        raise Broken(taken.why)
    try:
        await hold(seal.tip)
    finally:
        release(taken)
    return seal.tip


async def _record(session: Session, commit: str) -> None:
    """Hold *commit* by the next ref, let go of the oldest one, and record it."""
    context, known = session.context, await list_checkpoints(session.context.repository, session.id)
    number = known[-1].number + 1 if known else 1
    new = Checkpoint(session.id, number, commit)
    old = known[: len(known) + 1 - MOST_KEPT] if len(known) >= MOST_KEPT else []
    moves = [Move(new.ref, commit, ABSENT), *(Move(gone.ref, ABSENT, gone.commit) for gone in old)]
    await context.ledger.assert_owner(context.run)
    if not await move(context.repository, moves):
        raise Broken(f"{new.ref} cannot be made")
    step = session.worker.step
    await context.ledger.append(
        CheckpointKept(run=context.run, step=step, session=session.id, number=number, commit=commit)
    )


async def _take_snapshots(session: Session) -> None:
    """Keep a snapshot for each request, and record it as its answer; one that fails is no failure of the agent."""
    context = session.context
    while True:
        request = await session.control.snapshots.get()
        try:
            async with context.checkpoint_turn:
                commit = await _take_files(session, "", partial(_hold_snapshot, session)) or context.base.commit
            secrets = await find_secrets(context, context.base.commit, commit)
            kept = SnapshotKept(run=context.run, session=session.id, request=request, commit=commit, secrets=secrets)
        except FAULTS as error:
            why = context.mask.text(str(error) or type(error).__name__)
            kept = SnapshotKept(run=context.run, session=session.id, request=request, failure=why)
        await context.ledger.append(kept)


async def _hold_snapshot(session: Session, commit: str) -> None:
    """Hold *commit* by the one ref for snapshots of its session."""
    ref = f"{FOLDER}/{session.id}/{SNAPSHOT}"
    old = await value(session.context.repository, ref)
    if not await move(session.context.repository, [Move(ref, commit, old or ABSENT)]):
        raise Broken(f"{ref} cannot be moved")
