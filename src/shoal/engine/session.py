"""One session, from intent to end: workspace, private gitdir, wall, agent, seal, import, branch."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from shoal.adapters.events import NAME_SIGNS
from shoal.engine.agent_run import agent_run
from shoal.engine.artifacts import Collected, collected
from shoal.engine.artifacts import kept as kept_artifacts
from shoal.engine.client_settings import put_back
from shoal.engine.contracts.hold import held_to_contracts
from shoal.engine.job import Job
from shoal.engine.keep import Kept, kept
from shoal.engine.lease import Lease
from shoal.engine.patch import patch
from shoal.engine.quarters import opened
from shoal.engine.recycle import recycled
from shoal.engine.site import Site
from shoal.engine.spare import Spare
from shoal.engine.threads import thread_run
from shoal.engine.watch import Ended, Ending
from shoal.engine.words import Words
from shoal.errors import BadInput, ShoalError, Unavailable, first_of
from shoal.model.client_names import ACP
from shoal.model.events import Imported, SessionEnded, SessionStarted
from shoal.model.masking import Mask
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.workspaces.kind import Workspace
from shoal.workspaces.overlay import Overlay

# What goes wrong with one session is that session's failure, and never the end of the others.
FAULTS = (ShoalError, OSError, TimeoutError, ValueError)
PROMPT_SIGNS = 200


async def run_session(site: Site, job: Job, *, told: Callable[[WorkerResult], None] | None = None) -> WorkerResult:
    """Run one agent to its end and keep its work; the agent's failure is a value, and *told* to who wants to know.

    Cancelled, it asks the agent to stop, keeps its work and tells the result before it goes on being cancelled;
    cancelled once more it ends at once, and the next start brings in what was left.
    """
    stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            body = group.create_task(_session(site, job, stop, told))
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
    site: Site, job: Job, stop: asyncio.Event, told: Callable[[WorkerResult], None] | None
) -> WorkerResult:
    began = time.monotonic()
    path = site.paths.workspace(site.run, job.step, job.index)
    await site.ledger.append(intent(site, job, path))
    try:
        result = await _worked(site, job, path, stop)
    except FAULTS as error:
        result = WorkerResult(index=job.index, session=job.session, status=Status.FAILED, error=_said(error))
    result = replace(
        result,
        attempts=job.attempt,
        item=job.item,
        prompt=asked(site, job),
        base=site.base.commit,
        workspace=str(path),
        duration_seconds=round(time.monotonic() - began, 3),
    )
    try:
        result = await put_back(site, result)
    except FAULTS as error:  # the branch is as the client left it, and its base is what it started from
        result = replace(result, error=result.error or _said(error))
    result = masked(result, site.mask)
    try:
        await site.ledger.forget(job.session)
    except ShoalError as error:
        result = replace(result, error=result.error or f"its log is not whole: {error}")
    await site.ledger.append(*record(site, job, result))
    if told is not None:
        told(result)
    return result


async def _worked(site: Site, job: Job, path: Path, stop: asyncio.Event) -> WorkerResult:
    quarters = opened(site, job, path, is_seen=job.function is not None, starts=job.is_program, stop=stop)
    async with quarters as (workspace, lease, spare):
        words = Words(site.run, job.session, site.ledger.note, site.mask, site.flood)
        # From here on the files stay, until a ref holds them.
        workspace.keep = True
        work_in = way_to_work(job)
        try:
            ended = await work_in(site, job, workspace, lease, words, stop)
        except (BadInput, Unavailable):
            workspace.keep = False  # the agent never ran
            raise
        except FAULTS as error:
            return _raw(job, lease, error)
        left = await collected(site, workspace, job.artifacts)  # before the workspace is taken for another agent
        try:
            work = await bring_in(site, job, workspace, lease, spare)
        except FAULTS as error:
            return _raw(job, lease, error)
        result = await _with_artifacts(site, job, _result(job, ended, work, lease), left, work)
        return await held_to_contracts(site, job, result, lease.box, stop, way_to_work, left.produced)


async def _with_artifacts(site: Site, job: Job, result: WorkerResult, left: Collected, work: Kept) -> WorkerResult:
    """Keep the files that it had to leave; without them its work is not good."""
    try:
        files = {**kept_artifacts(site, job.session, left.produced), **await patch(site, job.session, work)}
    except FAULTS as error:  # the branch holds the work all the same
        return replace(result, status=Status.FAILED, error=_said(error))
    if left.problems and result.status.is_good:
        result = replace(result, status=Status.FAILED, error="\n".join(left.problems))
    return replace(result, artifacts=files) if files else result


def way_to_work(job: Job) -> Callable[..., Awaitable[Ended]]:
    """Say how *job* is worked on in its box."""
    if job.is_in_process:
        from shoal.engine.inprocess import in_process_run  # brings in pydantic-ai, which only its users pay for

        return in_process_run
    if job.task.agent.adapter == ACP:
        from shoal.engine.acp.run import acp_run  # brings in the protocol's SDK, which only its users pay for

        return acp_run
    return thread_run if job.function else agent_run


def _said(error: Exception) -> str:
    return str(error) or f"{type(error).__name__} while this session was worked on"


def _raw(job: Job, lease: Lease, error: Exception) -> WorkerResult:
    """Say that the files still lie where the agent left them."""
    return WorkerResult(
        index=job.index, session=job.session, status=Status.FAILED, error=_said(error), raw=str(lease.box)
    )


async def bring_in(site: Site, job: Job, workspace: Workspace, lease: Lease, spare: Spare | None) -> Kept:
    """Keep the work, and decide whether the files may go: no workspace is removed before a ref holds it."""
    workspace.keep = True
    has_history = spare is None or spare.has_history()
    message = job.message(site.mask.text)
    litter = job.adapter.client.litter if job.adapter.client else ()
    work = await kept(
        site, workspace, lease, branch=job.branch, message=message, has_history=has_history, litter=litter
    )
    if not work.must_stay and site.cleanup:
        workspace.keep = False
        # Where a wall cannot cover `.git`, an agent could have left a link there for the next one.
        if workspace.can_recycle and site.sandbox.mounts:
            workspace.recycled = await recycled(site, workspace, lease)
    return work


def _result(job: Job, ended: Ended, work: Kept, lease: Lease) -> WorkerResult:
    status, error = _verdict(job, ended, work)
    result = WorkerResult(
        index=job.index,
        session=job.session,
        status=status,
        exit_code=ended.exit.code,
        output=ended.words.output,
        limit="time" if ended.ending is Ending.TIME else ended.limit if ended.ending is Ending.LIMIT else None,
        usage=ended.usage,
        client_session=ended.client_session,
        error=error,
    )
    return work.on(result, lease.box)


def _verdict(job: Job, ended: Ended, work: Kept) -> tuple[Status, str | None]:
    if ended.ending is Ending.STOP:
        return Status.CANCELLED, work.failure
    if ended.ending is Ending.LIMIT:
        return Status.OVER_LIMIT, work.failure or f"over_limit: {ended.limit}"
    if ended.ending is Ending.TIME:
        return Status.TIMED_OUT, work.failure or ended.failure or f"it was still running after {job.seconds:g} s"
    if work.failure or ended.failure:
        return Status.FAILED, work.failure or ended.failure
    if ended.exit.signal is not None and not ended.is_judged:
        return Status.FAILED, f"it was ended by signal {ended.exit.signal}"
    if ended.exit.code != 0 and not ended.is_judged:
        said = f": {ended.words.complaint}" if ended.words.complaint else ""
        return Status.FAILED, f"it exited with {ended.exit.code}{said}"
    if work.commit is None and work.must_stay:
        return Status.FAILED, "what it wrote could not be kept as a commit; its raw files stay"
    if work.commit is None:
        wanted = job.task.expect == "changes"
        return (Status.FAILED, "changes were expected, and there are none") if wanted else (Status.NO_CHANGES, None)
    return Status.SUCCEEDED, None


def intent(site: Site, job: Job, path: Path) -> SessionStarted:
    """Say what is about to be opened, before anything of it exists."""
    return SessionStarted(
        run=site.run,
        step=job.step,
        session=job.session,
        index=job.index,
        branch=job.branch,
        base=site.base.commit,
        strategy=site.kind.name,
        workspace=str(path),
        attempt=job.attempt,
        by_host=isinstance(site.kind, Overlay) and site.kind.by_host,
        prompt=asked(site, job),
    )


def asked(site: Site, job: Job) -> str:
    """Give the beginning of the prompt on one line; masked before it is cut, or half of a secret could pass."""
    return " ".join(site.mask.text(job.task.title or job.task.prompt).split())[:PROMPT_SIGNS]


def record(site: Site, job: Job, result: WorkerResult) -> tuple[Imported | SessionEnded, ...]:
    """Say how a session ended."""
    ended = SessionEnded(run=site.run, step=job.step, session=job.session, result=result)
    if result.branch is None or result.commit is None:
        return (ended,)
    imported = Imported(
        run=site.run,
        session=job.session,
        branch=result.branch,
        commit=result.commit,
        files_changed=result.files_changed,
    )
    return imported, ended


def masked(result: WorkerResult, mask: Mask) -> WorkerResult:
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
        set_back=tuple(mask.text(name) for name in result.set_back),
        checks=tuple(replace(one, message=mask.text(one.message)) for one in result.checks),
    )


def unmasked(mask: Mask) -> tuple[str, ...]:
    """Say which secrets cannot be taken out of anything."""
    return tuple(f"the value of {name} is too short to be masked in output" for name in mask.unmasked)
