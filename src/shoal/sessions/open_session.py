"""A session held open: commands run in it one after the other, and its work is kept when it is closed."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.adapters.command import CommandAdapter as CommandAdapter
from shoal.errors import BadInput
from shoal.model.agent import AgentSpec
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Decision, PermissionManager
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.agent_process import Ending, watch_process
from shoal.sessions.context import RunContext
from shoal.sessions.database import keep_database
from shoal.sessions.keep_work import patch
from shoal.sessions.open_dir import open_session_dir
from shoal.sessions.output_log import OutputLog
from shoal.sessions.policy import agent_box, note_decision, session_bounds
from shoal.sessions.reuse import Spare
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.session import ended_events, import_work, mask_result, started_event
from shoal.sessions.session_dir import SessionDir
from shoal.sessions.worker import WorkerSpec
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

    def __init__(
        self,
        context: RunContext,
        worker: WorkerSpec,
        workspace: Workspace,
        session_dir: SessionDir,
        spare: Spare | None,
    ) -> None:
        self._site = context
        self._job = worker
        self._open = workspace
        self._lease = session_dir
        self._spare = spare
        self.session_id = worker.step
        self.workspace = workspace.path
        self.branch = worker.branch
        self.db_path = session_dir.database
        self.sandbox: Sandbox = context.sandbox
        self.permission_manager = PermissionManager(workspace.path, worker.task.permitted, tell=self._record_decision)
        self.result: WorkerResult | None = None
        self._began = time.monotonic()
        self._limit: str | None = None
        self.resources: dict[str, float] = {}
        """What its commands used of the machine so far: the highest memory, and all CPU together."""

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
        words = OutputLog(self._site.run, self._job.session, self._site.ledger.note, self._site.mask)
        with self._site.enforcer.group(f"{self._job.session}-{secrets.token_hex(2)}", self.limits) as group:
            bounds = session_bounds(self._site, self._job, self._open, self._lease, group)
            async with open_sandboxed(
                self._site.sandbox,
                boxed_command,
                policy,
                sink=words.feed,
                join=group.wrap,
                gone=group.end_rest,
                guard=self._site.guard,
            ) as box:
                seconds = _least(timeout, self.limits.time_seconds)
                seen = await watch_process(box, bounds, seconds, asyncio.Event(), self._site.grace)
            self._count(group.usage().as_resources())
        exit_, timed_out = seen.exit, seen.ending is Ending.TIME
        limit = "time" if timed_out else seen.limit or bounds.met(failed=exit_.code != 0)
        words.close()
        self._limit = limit or self._limit
        return CommandResult(
            exit_code=exit_.code,
            signal=exit_.signal,
            output=words.output,
            error=words.errors,
            timed_out=timed_out,
            limit=limit,
        )

    def _count(self, used: Mapping[str, float]) -> None:
        for name, number in used.items():
            before = self.resources.get(name, 0.0)
            self.resources[name] = max(before, number) if name == "memory_peak_mb" else round(before + number, 3)

    def _record_decision(self, decision: Decision) -> None:
        if self.result is None:  # once it is closed, so is its log
            note_decision(self._site, self._job, decision)

    async def close(self) -> WorkerResult:
        """Bring the work in; what could not be brought in stays on disk and is named."""
        context, worker = self._site, self._job
        database, unkept = await keep_database(context, worker.session, self._lease)
        work = await import_work(context, worker, self._open, self._lease, self._spare)
        status = Status.FAILED if work.failure else Status.SUCCEEDED if work.commit else Status.NO_CHANGES
        result = WorkerResult(
            index=worker.index,
            session=worker.session,
            status=status,
            error=work.failure,
            workspace=str(self.workspace),
            base=context.base.commit,
            limit=self._limit,
            resources=dict(self.resources),
            artifacts={**await patch(context, worker.session, work), **database},
            duration_seconds=round(time.monotonic() - self._began, 3),
        )
        result = work.on(result, self._lease.box)
        self.result = mask_result(replace(result, unkept=(*result.unkept, *unkept)), context.mask)
        await self._site.ledger.forget(self._job.session)
        await self._site.ledger.append(*ended_events(self._site, self._job, self.result))
        return self.result


@contextlib.asynccontextmanager
async def held_session(context: RunContext, worker: WorkerSpec) -> AsyncIterator[OpenSession]:
    """Open a session of a run for commands to come; on leaving, its work is kept."""
    path = context.paths.workspace(context.run, worker.step, worker.index)
    await context.ledger.append(started_event(context, worker, path))
    async with open_session_dir(context, worker, path) as (workspace, session_dir, spare):
        session = OpenSession(context, worker, workspace, session_dir, spare)
        try:
            yield session
        finally:
            await session.close()


def holding(step: str, index: int, limits: ResourceLimits | None) -> WorkerSpec:
    """Make the job of a session that waits for commands."""
    agent = AgentSpec(name=step, adapter="command", command=("true",))
    task = ResolvedTask(name=step, prompt="", agent=agent, limits=limits)
    return WorkerSpec(step=step, index=index, count=1, task=task, adapter=CommandAdapter())


def _least(*seconds: float | None) -> float | None:
    return min((one for one in seconds if one is not None), default=None)
