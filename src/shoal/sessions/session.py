"""One session: open it, run its agent, keep the work, check it against its contracts, record the result."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from shoal.adapters.events import MAX_NAME_CHARS
from shoal.adapters.kind import is_conversational
from shoal.contracts.check import check_contracts
from shoal.errors import FAULTS, BadInput, ShoalError, Unavailable, first_error
from shoal.git.run import git
from shoal.model.agent import ACP
from shoal.model.budget import BUDGET
from shoal.model.events import Imported, SessionEnded, SessionStarted
from shoal.model.masking import Mask
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.sessions.agent_process import AgentEnd, Ending, run_process
from shoal.sessions.artifacts import Collected, collect_artifacts, keep_database, store_artifacts
from shoal.sessions.checkpoints import keep_checkpoints
from shoal.sessions.client_conversation import run_conversation
from shoal.sessions.client_settings import restore_client_settings
from shoal.sessions.context import RunContext
from shoal.sessions.function_thread import run_in_thread
from shoal.sessions.keep_patiently import describe_error, keep_patiently
from shoal.sessions.keep_work import KeptWork, add_continued, add_patch, recycle
from shoal.sessions.open_session import open_session
from shoal.sessions.saved_conversations import ConversationKey, continue_conversation, drop_conversation, keep_stopped
from shoal.sessions.seal import SealRequest
from shoal.sessions.session_control import SessionControl, close_inbox
from shoal.sessions.setup.prepare import setup_record
from shoal.sessions.worker import Session, WorkerSpec

PROMPT_CHARS = 200

Runner = Callable[[Session], Awaitable[AgentEnd]]
"""Runs the agent of an open session until it ends."""


async def run_session(
    context: RunContext,
    worker: WorkerSpec,
    *,
    on_result: Callable[[WorkerResult], None] | None = None,
    control: SessionControl | None = None,
) -> WorkerResult:
    """Run one agent to its end and keep its work; an agent's failure is returned as a value.

    When the stop of *control* is set, it asks the agent to stop, keeps its work and returns the result. When
    cancelled, it does the same and passes the result to *on_result* before it lets the cancellation through. When
    cancelled again, it ends at once, and the next start of Shoal imports the work.
    """
    control = control or SessionControl()
    try:
        async with asyncio.TaskGroup() as group:
            body = group.create_task(_session(context, worker, control, on_result))
            try:
                await asyncio.wait((body,))
            except asyncio.CancelledError:
                control.ask_to_stop()
                await asyncio.wait((body,))
                raise
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return body.result()


async def _session(
    context: RunContext,
    worker: WorkerSpec,
    control: SessionControl,
    on_result: Callable[[WorkerResult], None] | None,
) -> WorkerResult:
    began = time.monotonic()
    await context.ledger.append(describe_start(context, worker))
    try:
        async with open_session(context, worker, control=control, is_held=False) as session:
            result = await _work(session)
    except FAULTS as error:
        result = _describe_failure(worker, error)
    close_inbox(context, worker.session, control)
    result = add_facts(context, worker, _with_stop(result, control), seconds=time.monotonic() - began)
    result = await bring_back_settings(context, result)
    result = await record_result(context, worker, mask_result(result, context.mask))
    if worker.adapter.client is not None and result.status is not Status.CANCELLED:
        drop_conversation(ConversationKey.of(context.run, worker).folder(context.paths))
    if on_result is not None:
        on_result(result)
    return result


async def _work(session: Session) -> WorkerResult:
    """Run the agent, keep its work, and check it against the contracts of its step."""
    workspace, worker = session.workspace, session.worker
    workspace.keep = True  # from here on the files stay, until a ref holds them
    run_agent = runner_for(worker)
    try:
        async with keep_checkpoints(session):
            ended = await (continue_conversation(session, run_agent) if worker.conversation else run_agent(session))
        ended = await keep_stopped(session, ended)
    except (BadInput, Unavailable):
        workspace.keep = False  # the agent never ran
        raise
    except FAULTS as error:
        return _describe_failure(worker, error, raw=session.raw_files)
    finally:
        close_inbox(session.context, session.id, session.control)
    collected = await collect_artifacts(
        session.context, workspace, worker.artifacts
    )  # before the workspace is recycled
    database = await keep_database(session)
    try:
        work = await add_continued(session.context, worker, await import_work(session))
    except FAULTS as error:
        return _describe_failure(worker, error, raw=session.raw_files)
    result = await _with_artifacts(session, _result(session, ended, work), collected, work)
    return await check_contracts(session, database.add_to(result), collected.produced, runner_for)


def runner_for(worker: WorkerSpec) -> Runner:
    """Return the function that runs the agent of *worker* in an open session."""
    if worker.is_in_process:
        from shoal.sessions.in_process import run_in_process  # imports pydantic-ai, which only its users pay for

        return run_in_process
    if worker.task.agent.adapter == ACP:
        from shoal.sessions.acp.conversation import run_acp  # imports the protocol's SDK, likewise

        return run_acp
    if is_conversational(worker.adapter) and worker.takes_messages:
        return functools.partial(run_conversation, adapter=worker.adapter)
    return run_in_thread if worker.function else run_process


def _describe_failure(worker: WorkerSpec, error: Exception, *, raw: Path | None = None) -> WorkerResult:
    """Make the result of a session that failed; *raw* is where its files still are, if any."""
    return WorkerResult(
        index=worker.index,
        session=worker.session,
        status=Status.FAILED,
        error=describe_error(error),
        raw=None if raw is None else str(raw),
    )


def _with_stop(result: WorkerResult, control: SessionControl) -> WorkerResult:
    """Name the person who stopped this session alone, if that ended it."""
    person = control.stopped_by
    if person is None or result.status is not Status.CANCELLED:
        return result
    return replace(result, stopped_by=person, error=result.error or f"stopped by {person}")


def add_facts(context: RunContext, worker: WorkerSpec, result: WorkerResult, *, seconds: float) -> WorkerResult:
    """Add to *result* what is known of its session without its agent."""
    return replace(
        result,
        attempts=worker.attempt,
        item=worker.item,
        prompt=prompt_summary(context, worker),
        agent=worker.task.agent.name,
        base=worker.origin or context.base.commit,
        workspace=str(context.workspace_path(worker.step, worker.index)),
        duration_seconds=round(seconds, 3),
        notes=(*result.notes, worker.start_note) if worker.start_note else result.notes,
    )


async def bring_back_settings(context: RunContext, result: WorkerResult) -> WorkerResult:
    """Bring back the client settings that were set aside for the session, if any were."""
    try:
        return await restore_client_settings(context, result)
    except FAULTS as error:  # the branch is as the client left it, and its base is what it started from
        return replace(result, error=result.error or describe_error(error))


async def _with_artifacts(session: Session, result: WorkerResult, left: Collected, work: KeptWork) -> WorkerResult:
    """Store the artifacts; if a required one is missing, the session has failed."""
    context = session.context
    try:
        if files := store_artifacts(context, session.id, left.produced):
            result = replace(result, artifacts=files)
        result = await add_patch(context, work, result)
    except FAULTS as error:  # the branch holds the work all the same
        return replace(result, status=Status.FAILED, error=describe_error(error), artifacts={})
    if left.problems and result.status.is_good:
        result = replace(result, status=Status.FAILED, error="\n".join(left.problems))
    return result


async def record_result(context: RunContext, worker: WorkerSpec, result: WorkerResult) -> WorkerResult:
    """Close the session's log, and write the result to the ledger."""
    for event in describe_end(context, worker, result):  # also in its own log, in case the ledger is lost
        context.ledger.note(event)
    try:
        await context.ledger.forget(worker.session)
    except ShoalError as error:
        result = replace(result, error=result.error or f"its log is incomplete: {error}")
    await context.ledger.append(*describe_end(context, worker, result))
    return result


async def import_work(session: Session) -> KeptWork:
    """Keep the work, and decide whether the files may go: no workspace is removed before a ref holds it."""
    context, worker, workspace = session.context, session.worker, session.workspace
    workspace.keep = True
    client = worker.adapter.client
    request = SealRequest(
        message=worker.message(context.mask.text, is_repeatable=context.recording is not None),
        has_history=session.has_history(),
        scratch_files=client.scratch_files if client else (),
    )
    work = await keep_patiently(session, request)
    if not work.must_stay and context.cleanup:
        workspace.keep = False
        # If a sandbox cannot cover `.git`, an agent could have left a link there for the next one.
        if workspace.can_recycle and context.sandbox.mounts:
            workspace.recycled = await recycle(session)
    if work.commit is not None and not context.cleanup and context.kind.links_branch:
        with contextlib.suppress(ShoalError):  # a person who looks there sees committed changes as clean
            await git(workspace.index.parent, "read-tree", work.commit)
    return work


def _result(session: Session, ended: AgentEnd, work: KeptWork) -> WorkerResult:
    status, error = _verdict(session.worker, ended, work)
    result = WorkerResult(
        index=session.worker.index,
        session=session.id,
        status=status,
        exit_code=ended.exit.code,
        output=ended.log.output,
        limit="time" if ended.ending is Ending.TIME else ended.limit if ended.ending is Ending.LIMIT else None,
        usage=ended.usage,
        resources=ended.resources,
        client_session=ended.client_session,
        error=error,
        notes=ended.notes,
    )
    return work.on(result, session.raw_files)


def _verdict(worker: WorkerSpec, ended: AgentEnd, work: KeptWork) -> tuple[Status, str | None]:
    if ended.ending is Ending.STOP:
        return Status.CANCELLED, work.failure
    if ended.ending is Ending.LIMIT:
        why = f"exceeded its {ended.limit} limit{worker.limits.most_of(ended.limit)}"
        return Status.OVER_LIMIT, work.failure or (ended.failure if ended.limit == BUDGET else why)
    if ended.ending is Ending.TIME:
        return Status.TIMED_OUT, work.failure or ended.failure or f"it was still running after {worker.seconds:g} s"
    if work.failure or ended.failure:
        return Status.FAILED, work.failure or ended.failure
    if ended.exit.signal is not None and not ended.is_judged:
        return Status.FAILED, f"it was killed by signal {ended.exit.signal}"
    if ended.exit.code != 0 and not ended.is_judged:
        reason = f": {ended.log.complaint}" if ended.log.complaint else ""
        return Status.FAILED, f"it exited with {ended.exit.code}{reason}"
    if work.too_large:
        return Status.FAILED, work.too_large
    if work.commit is None and work.must_stay:
        return Status.FAILED, "what it wrote could not be kept as a commit; its raw files stay"
    if work.commit is None:
        wanted = worker.task.expect == "changes"
        return (Status.FAILED, "changes were expected, and there are none") if wanted else (Status.NO_CHANGES, None)
    return Status.SUCCEEDED, None


def describe_start(context: RunContext, worker: WorkerSpec) -> SessionStarted:
    """Describe the session that is about to be opened, before anything of it exists."""
    return SessionStarted(
        run=context.run,
        step=worker.step,
        session=worker.session,
        index=worker.index,
        branch=worker.branch,
        base=context.base.commit,
        strategy=context.kind.name,
        workspace=str(context.workspace_path(worker.step, worker.index)),
        attempt=worker.attempt,
        by_host=context.kind.mounts_on_host,
        prompt=prompt_summary(context, worker),
        setup=setup_record(context, worker),
        visit=worker.visit,
        origin=worker.origin or "",
        content=worker.content,
        conversations=worker.adapter.client.conversations if worker.adapter.client else (),
        agent=worker.task.agent.name,
        adapter=worker.task.agent.adapter,
        takes_messages=worker.takes_messages,
        purpose=worker.purpose,
    )


def prompt_summary(context: RunContext, worker: WorkerSpec) -> str:
    """Return the beginning of the prompt on one line; masked before it is cut, or half of a secret could remain."""
    return " ".join(context.mask.text(worker.task.title or worker.task.prompt).split())[:PROMPT_CHARS]


def describe_end(context: RunContext, worker: WorkerSpec, result: WorkerResult) -> tuple[Imported | SessionEnded, ...]:
    """Describe how a session ended."""
    result = replace(result, purpose=worker.purpose, parent=worker.parent)
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
    """Mask secrets in what an agent or git printed; branch, commit and workspace are names of ours."""
    if mask.is_empty and result.client_session is None:
        return result
    return replace(
        result,
        output=mask.text(result.output),
        error=None if result.error is None else mask.text(result.error),
        client_session=None if result.client_session is None else mask.text(result.client_session)[:MAX_NAME_CHARS],
        item=None if result.item is None else mask.text(result.item),
        unkept=tuple(mask.text(name) for name in result.unkept),
        unconverted=tuple(mask.text(name) for name in result.unconverted),
        executable=tuple(mask.text(name) for name in result.executable),
        instructions=tuple(mask.text(name) for name in result.instructions),
        notes=tuple(mask.text(note) for note in result.notes),
        set_back=tuple(mask.text(name) for name in result.set_back),
        checks=tuple(replace(check, message=mask.text(check.message)) for check in result.checks),
    )
