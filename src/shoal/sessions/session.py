"""One session, from intent to end: workspace, private gitdir, wall, agent, seal, import, branch."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from shoal.adapters.events import NAME_SIGNS
from shoal.contracts.check import check_contracts
from shoal.errors import BadInput, ShoalError, Unavailable, first_of
from shoal.git.run import git
from shoal.model.agent import ACP
from shoal.model.events import Imported, SessionEnded, SessionStarted
from shoal.model.masking import Mask
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.sessions.agent_process import AgentEnd, Ending, agent_run
from shoal.sessions.artifacts import Collected, collect_artifacts
from shoal.sessions.artifacts import store_artifacts as kept_artifacts
from shoal.sessions.client_settings import restore_client_settings
from shoal.sessions.context import RunContext
from shoal.sessions.database import keep_database
from shoal.sessions.function_thread import thread_run
from shoal.sessions.keep_work import KeptWork, keep_work, patch, recycle
from shoal.sessions.open_dir import open_session_dir
from shoal.sessions.output_log import OutputLog
from shoal.sessions.reuse import Spare
from shoal.sessions.session_dir import SessionDir
from shoal.sessions.setup.prepare import setup_record
from shoal.sessions.worker import WorkerSpec
from shoal.workspaces.kind import Workspace
from shoal.workspaces.overlay import Overlay

# What goes wrong with one session is that session's failure, and never the end of the others.
FAULTS = (ShoalError, OSError, TimeoutError, ValueError)
PROMPT_SIGNS = 200


async def run_session(
    context: RunContext, worker: WorkerSpec, *, on_result: Callable[[WorkerResult], None] | None = None
) -> WorkerResult:
    """Run one agent to its end and keep its work; the agent's failure is a value, and *told* to who wants to know.

    Cancelled, it asks the agent to stop, keeps its work and tells the result before it goes on being cancelled;
    cancelled once more it ends at once, and the next start brings in what was left.
    """
    stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            body = group.create_task(_session(context, worker, stop, on_result))
            try:
                await asyncio.wait((body,))
            except asyncio.CancelledError:
                stop.set()
                await asyncio.wait((body,))
                raise
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return body.result()


async def _session(
    context: RunContext, worker: WorkerSpec, stop: asyncio.Event, told: Callable[[WorkerResult], None] | None
) -> WorkerResult:
    began = time.monotonic()
    path = context.paths.workspace(context.run, worker.step, worker.index)
    await context.ledger.append(started_event(context, worker, path))
    try:
        result = await _work(context, worker, path, stop)
    except FAULTS as error:
        result = WorkerResult(
            index=worker.index, session=worker.session, status=Status.FAILED, error=_error_text(error)
        )
    result = replace(
        result,
        attempts=worker.attempt,
        item=worker.item,
        prompt=prompt_summary(context, worker),
        base=context.base.commit,
        workspace=str(path),
        duration_seconds=round(time.monotonic() - began, 3),
    )
    try:
        result = await restore_client_settings(context, result)
    except FAULTS as error:  # the branch is as the client left it, and its base is what it started from
        result = replace(result, error=result.error or _error_text(error))
    result = mask_result(result, context.mask)
    try:
        await context.ledger.forget(worker.session)
    except ShoalError as error:
        result = replace(result, error=result.error or f"its log is not whole: {error}")
    await context.ledger.append(*ended_events(context, worker, result))
    if told is not None:
        told(result)
    return result


async def _work(context: RunContext, worker: WorkerSpec, path: Path, stop: asyncio.Event) -> WorkerResult:
    quarters = open_session_dir(
        context, worker, path, is_seen=worker.function is not None, starts=worker.is_program, stop=stop
    )
    async with quarters as (workspace, session_dir, spare):
        words = OutputLog(context.run, worker.session, context.ledger.note, context.mask, context.flood)
        # From here on the files stay, until a ref holds them.
        workspace.keep = True
        work_in = runner_for(worker)
        try:
            ended = await work_in(context, worker, workspace, session_dir, words, stop)
        except (BadInput, Unavailable):
            workspace.keep = False  # the agent never ran
            raise
        except FAULTS as error:
            return _raw(worker, session_dir, error)
        left = await collect_artifacts(
            context, workspace, worker.artifacts
        )  # before the workspace is taken for another agent
        database, unkept = await keep_database(context, worker.session, session_dir)
        try:
            work = await import_work(context, worker, workspace, session_dir, spare)
        except FAULTS as error:
            return _raw(worker, session_dir, error)
        result = await _with_artifacts(context, worker, _result(worker, ended, work, session_dir), left, work)
        if database or unkept:
            result = replace(result, artifacts={**result.artifacts, **database}, unkept=(*result.unkept, *unkept))
        return await check_contracts(context, worker, result, session_dir.box, stop, runner_for, left.produced)


async def _with_artifacts(
    context: RunContext, worker: WorkerSpec, result: WorkerResult, left: Collected, work: KeptWork
) -> WorkerResult:
    """Keep the files that it had to leave; without them its work is not good."""
    try:
        files = {**kept_artifacts(context, worker.session, left.produced), **await patch(context, worker.session, work)}
    except FAULTS as error:  # the branch holds the work all the same
        return replace(result, status=Status.FAILED, error=_error_text(error))
    if left.problems and result.status.is_good:
        result = replace(result, status=Status.FAILED, error="\n".join(left.problems))
    return replace(result, artifacts=files) if files else result


def runner_for(worker: WorkerSpec) -> Callable[..., Awaitable[AgentEnd]]:
    """Say how *worker* is worked on in its box."""
    if worker.is_in_process:
        from shoal.sessions.in_process import in_process_run  # brings in pydantic-ai, which only its users pay for

        return in_process_run
    if worker.task.agent.adapter == ACP:
        from shoal.sessions.acp.conversation import (
            acp_run,  # brings in the protocol's SDK, which only its users pay for
        )

        return acp_run
    return thread_run if worker.function else agent_run


def _error_text(error: Exception) -> str:
    return str(error) or f"{type(error).__name__} while this session was worked on"


def _raw(worker: WorkerSpec, session_dir: SessionDir, error: Exception) -> WorkerResult:
    """Say that the files still lie where the agent left them."""
    return WorkerResult(
        index=worker.index,
        session=worker.session,
        status=Status.FAILED,
        error=_error_text(error),
        raw=str(session_dir.box),
    )


async def import_work(
    context: RunContext, worker: WorkerSpec, workspace: Workspace, session_dir: SessionDir, spare: Spare | None
) -> KeptWork:
    """Keep the work, and decide whether the files may go: no workspace is removed before a ref holds it."""
    workspace.keep = True
    has_history = spare is None or spare.has_history()
    message = worker.message(context.mask.text)
    litter = worker.adapter.client.litter if worker.adapter.client else ()
    work = await keep_work(
        context, workspace, session_dir, branch=worker.branch, message=message, has_history=has_history, litter=litter
    )
    if not work.must_stay and context.cleanup:
        workspace.keep = False
        # Where a wall cannot cover `.git`, an agent could have left a link there for the next one.
        if workspace.can_recycle and context.sandbox.mounts:
            workspace.recycled = await recycle(context, workspace, session_dir)
    if work.commit is not None and not context.cleanup and context.kind.name == "worktree":
        with contextlib.suppress(ShoalError):  # a person who looks there is shown no changes that are committed
            await git(workspace.index.parent, "read-tree", work.commit)
    return work


def _result(worker: WorkerSpec, ended: AgentEnd, work: KeptWork, session_dir: SessionDir) -> WorkerResult:
    status, error = _verdict(worker, ended, work)
    result = WorkerResult(
        index=worker.index,
        session=worker.session,
        status=status,
        exit_code=ended.exit.code,
        output=ended.words.output,
        limit="time" if ended.ending is Ending.TIME else ended.limit if ended.ending is Ending.LIMIT else None,
        usage=ended.usage,
        resources=ended.resources,
        client_session=ended.client_session,
        error=error,
    )
    return work.on(result, session_dir.box)


def _verdict(worker: WorkerSpec, ended: AgentEnd, work: KeptWork) -> tuple[Status, str | None]:
    if ended.ending is Ending.STOP:
        return Status.CANCELLED, work.failure
    if ended.ending is Ending.LIMIT:
        return Status.OVER_LIMIT, work.failure or f"over_limit: {ended.limit}{worker.limits.most_of(ended.limit)}"
    if ended.ending is Ending.TIME:
        return Status.TIMED_OUT, work.failure or ended.failure or f"it was still running after {worker.seconds:g} s"
    if work.failure or ended.failure:
        return Status.FAILED, work.failure or ended.failure
    if ended.exit.signal is not None and not ended.is_judged:
        return Status.FAILED, f"it was ended by signal {ended.exit.signal}"
    if ended.exit.code != 0 and not ended.is_judged:
        said = f": {ended.words.complaint}" if ended.words.complaint else ""
        return Status.FAILED, f"it exited with {ended.exit.code}{said}"
    if work.too_large:
        return Status.FAILED, work.too_large
    if work.commit is None and work.must_stay:
        return Status.FAILED, "what it wrote could not be kept as a commit; its raw files stay"
    if work.commit is None:
        wanted = worker.task.expect == "changes"
        return (Status.FAILED, "changes were expected, and there are none") if wanted else (Status.NO_CHANGES, None)
    return Status.SUCCEEDED, None


def started_event(context: RunContext, worker: WorkerSpec, path: Path) -> SessionStarted:
    """Say what is about to be opened, before anything of it exists."""
    return SessionStarted(
        run=context.run,
        step=worker.step,
        session=worker.session,
        index=worker.index,
        branch=worker.branch,
        base=context.base.commit,
        strategy=context.kind.name,
        workspace=str(path),
        attempt=worker.attempt,
        by_host=isinstance(context.kind, Overlay) and context.kind.by_host,
        prompt=prompt_summary(context, worker),
        setup=setup_record(context, worker),
    )


def prompt_summary(context: RunContext, worker: WorkerSpec) -> str:
    """Give the beginning of the prompt on one line; masked before it is cut, or half of a secret could pass."""
    return " ".join(context.mask.text(worker.task.title or worker.task.prompt).split())[:PROMPT_SIGNS]


def ended_events(context: RunContext, worker: WorkerSpec, result: WorkerResult) -> tuple[Imported | SessionEnded, ...]:
    """Say how a session ended."""
    ended = SessionEnded(run=context.run, step=worker.step, session=worker.session, result=result)
    if result.branch is None or result.commit is None:
        return (ended,)
    imported = Imported(
        run=context.run,
        session=worker.session,
        branch=result.branch,
        commit=result.commit,
        files_changed=result.files_changed,
    )
    return imported, ended


def mask_result(result: WorkerResult, mask: Mask) -> WorkerResult:
    """Take secrets out of what an agent or git said; branch, commit and workspace are names of ours."""
    if mask.is_empty and result.client_session is None:
        return result
    return replace(
        result,
        output=mask.text(result.output),
        error=None if result.error is None else mask.text(result.error),
        client_session=None if result.client_session is None else mask.text(result.client_session)[:NAME_SIGNS],
        item=None if result.item is None else mask.text(result.item),
        unkept=tuple(mask.text(name) for name in result.unkept),
        unconverted=tuple(mask.text(name) for name in result.unconverted),
        executable=tuple(mask.text(name) for name in result.executable),
        instructions=tuple(mask.text(name) for name in result.instructions),
        notes=tuple(mask.text(note) for note in result.notes),
        set_back=tuple(mask.text(name) for name in result.set_back),
        checks=tuple(replace(one, message=mask.text(one.message)) for one in result.checks),
    )


def name_short_secrets(mask: Mask) -> tuple[str, ...]:
    """Say which secrets cannot be taken out of anything."""
    return tuple(f"the value of {name} is too short to be masked in output" for name in mask.unmasked)
