"""A session held open: commands run in it one after the other, and its work is kept when it is closed."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from shoal.adapters.command import Command as CommandAdapter
from shoal.engine.agent_box import agent_box, bounded, note_decision
from shoal.engine.behind import boxed
from shoal.engine.job import Job
from shoal.engine.lease import Lease
from shoal.engine.quarters import opened
from shoal.engine.session import bring_in, intent, masked, record
from shoal.engine.site import Site
from shoal.engine.spare import Spare
from shoal.engine.watch import Ending, watched
from shoal.engine.words import Words
from shoal.errors import BadInput
from shoal.model.agent import AgentSpec
from shoal.model.assignment import Assignment
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Decision, PermissionManager
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.sandboxes.kind import Sandbox
from shoal.workspaces.kind import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command in a session ended, and the end of what it said."""

    exit_code: int | None
    signal: int | None
    output: str
    error: str
    timed_out: bool = False
    limit: str | None = None
    """The limit that it met, if it met one."""


class OpenSession:
    """An open session: everything in it is private to it until it is closed."""

    def __init__(self, site: Site, job: Job, workspace: Workspace, lease: Lease, spare: Spare | None) -> None:
        self._site = site
        self._job = job
        self._open = workspace
        self._lease = lease
        self._spare = spare
        self.session_id = job.step
        self.workspace = workspace.path
        self.branch = job.branch
        self.db_path = lease.database
        self.sandbox: Sandbox = site.sandbox
        self.permission_manager = PermissionManager(workspace.path, job.task.permitted, tell=self._told)
        self.result: WorkerResult | None = None

    @property
    def limits(self) -> ResourceLimits:
        """What each command in it may spend."""
        return self._job.limits

    async def run(
        self, command: str | Sequence[str], *, timeout: float | None = None, stdin: bytes | None = None
    ) -> CommandResult:
        """Run *command* behind the session's wall, in its workspace; a string is given to `sh -c`."""
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
        if not argv:
            raise BadInput("the command is empty; give a program")
        boxed_command, policy = agent_box(self._site, self._job, self._open, self._lease, argv)
        boxed_command = replace(boxed_command, stdin=stdin or b"")
        words = Words(self._site.run, self._job.session, self._site.ledger.note, self._site.mask)
        with self._site.enforcer.group(f"{self._job.session}-{secrets.token_hex(2)}", self.limits) as group:
            bounds = bounded(self._site, self._job, self._open, self._lease, group)
            async with boxed(
                self._site.sandbox, boxed_command, policy, sink=words.feed, join=group.wrap, gone=group.end_rest
            ) as box:
                seconds = _least(timeout, self.limits.time_seconds)
                seen = await watched(box, bounds, seconds, asyncio.Event(), self._site.grace)
        exit_, timed_out = seen.exit, seen.ending is Ending.TIME
        limit = "time" if timed_out else seen.limit or bounds.met(failed=exit_.code != 0)
        words.close()
        return CommandResult(
            exit_code=exit_.code,
            signal=exit_.signal,
            output=words.output,
            error=words.errors,
            timed_out=timed_out,
            limit=limit,
        )

    def _told(self, decision: Decision) -> None:
        if self.result is None:  # once it is closed, so is its log
            note_decision(self._site, self._job, decision)

    async def close(self) -> WorkerResult:
        """Bring the work in; what could not be brought in stays on disk and is named."""
        work = await bring_in(self._site, self._job, self._open, self._lease, self._spare)
        status = Status.FAILED if work.failure else Status.SUCCEEDED if work.commit else Status.NO_CHANGES
        result = WorkerResult(index=0, session=self._job.session, status=status, error=work.failure)
        result = work.on(replace(result, workspace=str(self.workspace)), self._lease.box)
        self.result = masked(result, self._site.mask)
        await self._site.ledger.forget(self._job.session)
        await self._site.ledger.append(*record(self._site, self._job, self.result))
        return self.result


@contextlib.asynccontextmanager
async def held_session(site: Site, job: Job) -> AsyncIterator[OpenSession]:
    """Open a session of a run for commands to come; on leaving, its work is kept."""
    path = site.paths.workspace(site.run, job.step, job.index)
    await site.ledger.append(intent(site, job, path))
    async with opened(site, job, path) as (workspace, lease, spare):
        session = OpenSession(site, job, workspace, lease, spare)
        try:
            yield session
        finally:
            await session.close()


def holding(step: str, index: int, limits: ResourceLimits | None) -> Job:
    """Make the job of a session that waits for commands."""
    agent = AgentSpec(name=step, adapter="command", command=("true",))
    task = Assignment(name=step, prompt="", agent=agent, limits=limits)
    return Job(step=step, index=index, count=1, task=task, adapter=CommandAdapter())


def _least(*seconds: float | None) -> float | None:
    return min((one for one in seconds if one is not None), default=None)
