"""Checkpoints: an agent's files are kept on refs of ours while it works, so that a machine that dies costs minutes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from shoal.errors import FAULTS, Broken, first_error
from shoal.git.imports import ImportRefused, release, take
from shoal.git.refs import ABSENT, Move, move, value
from shoal.git.run import git
from shoal.model.activity import Act
from shoal.model.events import AgentActed, CheckpointKept
from shoal.model.repository import Repository
from shoal.proc.free_space import above_floor
from shoal.sessions.reuse import Fingerprint, fingerprint
from shoal.sessions.seal import Seal, SealRequest, seal_work
from shoal.sessions.worker import Session
from shoal.workspaces.overlay import is_empty

FOLDER = "refs/shoal/checkpoint"
RESTORED = "its files are gone; its work is that of its checkpoint"
MOST_KEPT = 24
"""Of one session: two hours at the usual interval. Older ones go."""
MOST_SECONDS = 7 * 86400.0
"""How long a checkpoint stays after the end of its session; `shoal clean` removes it earlier."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of a session at one moment, as a commit on its base."""

    session: str
    number: int
    commit: str
    at: float = 0.0
    """When it was kept."""

    @property
    def ref(self) -> str:
        """The ref that holds it."""
        return f"{FOLDER}/{self.session}/{self.number}"

    @property
    def note(self) -> str:
        """Say that its session goes on from it."""
        return f"{RESTORED} {self.number}"


async def list_checkpoints(repository: Repository, session: str = "") -> list[Checkpoint]:
    """List the checkpoints of *session*, or of all sessions; those of a session by their numbers."""
    prefix = f"{FOLDER}/{session}" if session else FOLDER
    fields = "--format=%(refname)%00%(objectname)%00%(committerdate:unix)"
    done = await git(repository.git, "for-each-ref", fields, prefix)
    rows = [line.split("\0") for line in done.stdout.decode(errors="surrogateescape").splitlines()]
    found = [Checkpoint(*_split(ref), commit, float(at or 0)) for ref, commit, at in rows if _split(ref)[1]]
    return sorted(found, key=lambda checkpoint: (checkpoint.session, checkpoint.number))


async def drop_old_checkpoints(repository: Repository) -> None:
    """Remove those that nobody went back to for days; when this is called, all work of dead runs is on branches."""
    before = time.time() - MOST_SECONDS
    old = [checkpoint for checkpoint in await list_checkpoints(repository) if checkpoint.at < before]
    if old:
        await move(repository, [Move(checkpoint.ref, ABSENT, checkpoint.commit) for checkpoint in old])


def _split(ref: str) -> tuple[str, int]:
    session, _, number = ref.removeprefix(f"{FOLDER}/").rpartition("/")
    return session, int(number) if number.isascii() and number.isdigit() else 0


def is_restored(note: str) -> bool:
    """Say whether *note* is that of a checkpoint which took the place of lost files."""
    return note.startswith(RESTORED)


async def restore_checkpoint(repository: Repository, session: str, branch: str) -> Checkpoint | None:
    """Put the last checkpoint of *session*, whose files are gone, on its branch; `None` where there is none."""
    found = await list_checkpoints(repository, session)
    if not found:
        return None
    if not await move(repository, [Move(f"refs/heads/{branch}", found[-1].commit, ABSENT)]):
        raise Broken(f"{branch} cannot be made")
    return found[-1]


async def drop_checkpoints(repository: Repository, *sessions: str) -> None:
    """Remove the checkpoints of *sessions*."""
    found = [checkpoint for session in sessions for checkpoint in await list_checkpoints(repository, session)]
    if found:
        await move(repository, [Move(checkpoint.ref, ABSENT, checkpoint.commit) for checkpoint in found])


@contextlib.asynccontextmanager
async def keep_checkpoints(session: Session) -> AsyncIterator[None]:
    """Keep a checkpoint every so often, as long as the agent of *session* works."""
    seconds = session.context.checkpoint_seconds
    if seconds is None:
        yield
        return
    try:
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(_keep_all(session, seconds))
            try:
                yield
            finally:
                keeping.cancel()
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
    text = context.mask.text(f"no checkpoint was kept: {why}")
    context.ledger.note(AgentActed(run=context.run, session=session.id, act=Act.TROUBLE, text=text))


async def _keep_next(session: Session, last: _Last) -> _Last:
    """Keep the files as they are now, if they are not as in the last checkpoint."""
    context, workspace = session.context, session.workspace
    seen = fingerprint(workspace.changes)  # of more than a few hundred files it says nothing, and the seal compares
    if (seen is not None and seen == last.seen) or (workspace.is_overlay and is_empty(workspace.changes)):
        return last
    client = session.worker.adapter.client
    request = SealRequest(
        message=session.worker.message(context.mask.text),
        has_history=False,
        scratch_files=client.scratch_files if client else (),
        known_tree=last.tree,
    )
    seal = await seal_work(context, workspace, session.directory, request)
    try:
        tree = await _take(session, seal)
    finally:
        if seal.pack is not None:
            seal.pack.unlink(missing_ok=True)
    return _Last(seen=seen, tree=tree or last.tree)


async def _take(session: Session, seal: Seal) -> str | None:
    """Take what was sealed into the repository, and give its tree; `None` where there is nothing new."""
    context, repository = session.context, session.context.repository
    if seal.failure is not None:
        raise Broken(seal.failure)
    if seal.tip is None or seal.pack is None:
        return None
    base, lender = context.base.commit, context.base.objects
    async with above_floor(context.paths.root):
        taken = await take(repository, seal.pack, base=base, tips=(seal.tip,), lender=lender, bounds=context.bounds)
    if isinstance(taken, ImportRefused):
        raise Broken(taken.why)
    try:
        await _record(session, seal.tip)
    finally:
        release(taken)
    return await value(repository, f"{seal.tip}^{{tree}}")


async def _record(session: Session, commit: str) -> None:
    """Hold *commit* by the next ref, let go of the oldest one, and record it."""
    context, known = session.context, await list_checkpoints(session.context.repository, session.id)
    number = known[-1].number + 1 if known else 1
    new = Checkpoint(session.id, number, commit)
    old = known[: len(known) + 1 - MOST_KEPT] if len(known) >= MOST_KEPT else []
    moves = [Move(new.ref, commit, ABSENT), *(Move(gone.ref, ABSENT, gone.commit) for gone in old)]
    if not await move(context.repository, moves):
        raise Broken(f"{new.ref} cannot be made")
    step = session.worker.step
    await context.ledger.append(
        CheckpointKept(run=context.run, step=step, session=session.id, number=number, commit=commit)
    )
