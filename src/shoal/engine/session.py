"""One session, from intent to end: workspace, private gitdir, wall, agent, seal, import, branch."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.engine.behind import boxed
from shoal.engine.bounds import Bounds
from shoal.engine.job import Job
from shoal.engine.keep import Kept, kept
from shoal.engine.lease import SYSTEM_PATH, Lease, leased
from shoal.engine.patch import patch
from shoal.engine.recycle import recycled
from shoal.engine.site import Site
from shoal.engine.toolchain import toolchain
from shoal.engine.touched import Fingerprint, fingerprint
from shoal.engine.watch import Ending, watched
from shoal.engine.words import Words
from shoal.errors import ShoalError, Unavailable
from shoal.git.gitdir import user_config, write_gitdir
from shoal.limits.kind import Group
from shoal.model.command import Command
from shoal.model.events import AgentEnded, AgentStarted, Imported, SessionEnded, SessionStarted
from shoal.model.masking import Mask
from shoal.model.policy import Bind, Policy
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.proc import Exit
from shoal.workspaces.kind import Order, Workspace
from shoal.workspaces.overlay import Overlay

# What goes wrong with one session is that session's failure, and never the end of the others.
FAULTS = (ShoalError, OSError, TimeoutError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the agent's process ended, and what it had said."""

    ending: Ending
    exit: Exit
    words: Words
    limit: str | None = None


async def run_session(site: Site, job: Job, stop: asyncio.Event) -> WorkerResult:
    """Run one agent to its end and keep its work; the agent's failure is a value.

    When *stop* is set, or the task is cancelled, the agent is ended and its work kept all the same.
    """
    began = time.monotonic()
    path = site.paths.workspace(site.run, job.step, job.index)
    await site.ledger.append(intent(site, job, path))
    cancelled = False
    try:
        result, cancelled = await _worked(site, job, path, stop)
    except FAULTS as error:
        result = WorkerResult(index=job.index, session=job.session, status=Status.FAILED, error=_said(error))
    result = masked(_dated(result, path, time.monotonic() - began), site.mask)
    try:
        await site.ledger.forget(job.session)
    except ShoalError as error:
        result = replace(result, error=result.error or f"its log is not whole: {error}")
    await site.ledger.append(*record(site, job, result))
    if cancelled:
        raise asyncio.CancelledError
    return result


async def _worked(site: Site, job: Job, path: Path, stop: asyncio.Event) -> tuple[WorkerResult, bool]:
    async with opened(site, job, path) as (workspace, lease, before):
        words = Words(site.run, job.session, site.ledger.note, site.mask)
        cancelled = False
        # From here on the files stay, until a ref holds them.
        workspace.keep = True
        try:
            ended = await _agent_run(site, job, workspace, lease, words, stop)
        except Unavailable:
            workspace.keep = False  # the agent never ran
            raise
        except asyncio.CancelledError:
            # The agent is gone; what it wrote is brought in before the cancellation goes on.
            cancelled = True
            _uncancel()
            ended = Ended(ending=Ending.STOP, exit=Exit(None, None), words=words)
        except FAULTS as error:
            return _raw(job, lease, error), False
        try:
            work = await bring_in(site, job, workspace, lease, before)
        except FAULTS as error:
            return _raw(job, lease, error), cancelled
        result = replace(_result(job, ended, work, lease), artifacts=await patch(site, job.session, work))
        return result, cancelled


def _said(error: Exception) -> str:
    return str(error) or f"{type(error).__name__} while this session was worked on"


def _raw(job: Job, lease: Lease, error: Exception) -> WorkerResult:
    """Say that the files still lie where the agent left them."""
    return WorkerResult(
        index=job.index, session=job.session, status=Status.FAILED, error=_said(error), raw=str(lease.box)
    )


@contextlib.asynccontextmanager
async def opened(site: Site, job: Job, path: Path) -> AsyncIterator[tuple[Workspace, Lease, Fingerprint | None]]:
    """Open everything private to a session; on leaving it is removed, unless the raw files must stay."""
    box = site.paths.box(job.session)
    prompts = {"prompt.md": job.task.prompt, "system_prompt.md": job.task.system_prompt}
    with leased(box, job.session, prompts, site.user, database=job.database) as lease:
        order = Order(repository=site.repository, base=site.base, path=path, box=box, branch=job.branch)
        # So that git works in any other repository that the agent makes, too.
        (lease.home / ".gitconfig").write_text(user_config(site.repository.identity), errors="surrogateescape")
        workspace: Workspace | None = None
        try:
            async with site.kind.opened(order) as workspace:
                _private_gitdir(site, job, workspace, lease)
                lease.opened.touch()
                yield workspace, lease, fingerprint(lease.git)
        finally:
            if workspace is None or not workspace.keep:
                site.trash.throw(box)
            prune(path, site.paths.workspaces)


def _private_gitdir(site: Site, job: Job, workspace: Workspace, lease: Lease) -> None:
    ref = f"refs/heads/{job.branch}"
    named = {f"refs/heads/{site.repository.branch}": site.base.commit} if site.repository.branch else {}
    refs = {ref: site.base.commit, **named}
    write_gitdir(lease.git, site.repository, head=f"ref: {ref}", refs=refs, index=workspace.index)
    if not site.sandbox.mounts:
        # A wall that cannot lay a pointer over `.git` needs it in the workspace itself.
        pointer = workspace.path / ".git"
        pointer.unlink(missing_ok=True)
        pointer.write_text(f"gitdir: {lease.git}\n", errors="surrogateescape")


async def _agent_run(
    site: Site, job: Job, workspace: Workspace, lease: Lease, words: Words, stop: asyncio.Event
) -> Ended:
    command, policy = agent_box(site, job, workspace, lease)
    with site.enforcer.group(job.session, job.limits) as group:
        bounds = bounded(site, job, workspace, lease, group)
        try:
            async with boxed(site.sandbox, command, policy, sink=words.feed, join=group.wrap) as box:
                site.ledger.note(AgentStarted(run=site.run, session=job.session, pid=box.pid))
                seen = await watched(box, bounds, job.seconds, stop, site.grace)
        finally:
            words.close()
    exit_ = seen.exit
    site.ledger.note(AgentEnded(run=site.run, session=job.session, exit_code=exit_.code, signal=exit_.signal))
    limit = seen.limit or bounds.met(failed=exit_.code != 0)
    ending = Ending.LIMIT if limit and seen.ending is Ending.BY_ITSELF else seen.ending
    return Ended(ending=ending, exit=exit_, words=words, limit=limit)


def bounded(site: Site, job: Job, workspace: Workspace, lease: Lease, group: Group) -> Bounds:
    """Say what a session is held to; a workspace that is a whole checkout does not count for its base."""
    given = 0 if workspace.is_overlay else site.base.bytes
    folders = (workspace.changes, lease.git, lease.own)
    return Bounds(group=group, limits=job.limits, folders=folders, given_bytes=given)


def agent_box(
    site: Site, job: Job, workspace: Workspace, lease: Lease, argv: tuple[str, ...] | None = None
) -> tuple[Command, Policy]:
    """Say what runs in the agent's box, and what that box may see; *argv* stands in for the adapter's."""
    invocation = job.adapter.invocation(job.task)
    argv = argv or invocation.argv
    tools = toolchain(argv[0], search=site.environ.get("PATH", ""), private=site.private)
    network = job.task.network or job.task.agent.network or job.adapter.default_network
    covers = (
        Bind(lease.inputs / "passwd", Path("/etc/passwd")),
        Bind(lease.inputs / "group", Path("/etc/group")),
        Bind(lease.inputs / "git", workspace.path / ".git"),
    )
    policy = site.policy(
        token=secrets.token_hex(8),
        read=(lease.inputs, *tools.read, *invocation.needs),
        write=(workspace.path, lease.git, lease.own),
        covers=covers,
        layers=workspace.layers,
        network=network,
    )
    env = {**_environment(site, job, workspace, lease, tools.path), **job.task.agent.env, **job.task.env}
    return Command(argv=argv, cwd=workspace.path, env=env, stdin=invocation.stdin), policy


def _environment(site: Site, job: Job, workspace: Workspace, lease: Lease, path: tuple[Path, ...]) -> dict[str, str]:
    return {
        **lease.environment(),
        "PATH": ":".join((*map(str, path), *SYSTEM_PATH)),
        "SHOAL_RUN": site.run,
        "SHOAL_STEP": job.step,
        "SHOAL_WORKER_INDEX": str(job.index),
        "SHOAL_WORKER_COUNT": str(job.count),
        "SHOAL_WORKSPACE_PATH": str(workspace.path),
        "SHOAL_ROOT_PATH": str(site.repository.top),
        "SHOAL_BRANCH": job.branch,
    }


async def bring_in(site: Site, job: Job, workspace: Workspace, lease: Lease, before: Fingerprint | None) -> Kept:
    """Keep the work, and decide whether the files may go: no workspace is removed before a ref holds it."""
    workspace.keep = True
    has_history = before is None or fingerprint(lease.git) != before
    message = site.mask.text(job.message)
    work = await kept(site, workspace, lease, branch=job.branch, message=message, has_history=has_history)
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
        attempts=job.attempt,
        limit="time" if ended.ending is Ending.TIME else ended.limit if ended.ending is Ending.LIMIT else None,
        error=error,
    )
    return work.on(result, lease.box)


def _verdict(job: Job, ended: Ended, work: Kept) -> tuple[Status, str | None]:
    if ended.ending is Ending.STOP:
        return Status.CANCELLED, work.failure
    if ended.ending is Ending.LIMIT:
        return Status.OVER_LIMIT, work.failure or f"over_limit: {ended.limit}"
    if ended.ending is Ending.TIME:
        return Status.TIMED_OUT, work.failure or f"it was still running after {job.seconds:g} s"
    if work.failure:
        return Status.FAILED, work.failure
    if ended.exit.signal is not None:
        return Status.FAILED, f"it was ended by signal {ended.exit.signal}"
    if ended.exit.code != 0:
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
    )


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
    return replace(
        result,
        output=mask.text(result.output),
        error=None if result.error is None else mask.text(result.error),
        unkept=tuple(mask.text(name) for name in result.unkept),
        executable=tuple(mask.text(name) for name in result.executable),
    )


def _dated(result: WorkerResult, path: Path, seconds: float) -> WorkerResult:
    return replace(result, workspace=str(path), duration_seconds=round(seconds, 3))


def prune(path: Path, root: Path) -> None:
    """Remove the workspace's folder and its parents as far as they are empty."""
    for folder in (path, *path.parents):
        if folder == root:
            return
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
