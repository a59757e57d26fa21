"""A session that runs commands one after the other; its work is kept when it is closed."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
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
from shoal.sessions.artifacts import keep_database
from shoal.sessions.context import RunContext
from shoal.sessions.keep_work import add_patch
from shoal.sessions.model_access import ModelAccess, open_model
from shoal.sessions.open_session import open_session
from shoal.sessions.policy import agent_command, network_of, note_decision, session_bounds
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.session import describe_end, describe_start, import_work, mask_result
from shoal.sessions.worker import Session, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command in a session ended, and the end of its output."""

    exit_code: int | None
    signal: int | None
    output: str
    error: str
    timed_out: bool = False
    limit: str | None = None
    """The limit that it exceeded, if any."""


class OpenSession:
    """An open session: everything in it is private until it is closed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        worker, workspace = session.worker, session.workspace
        self.session_id = worker.step
        self.workspace = workspace.path
        self.branch = worker.branch
        self.db_path = session.directory.database
        self.sandbox: Sandbox = session.context.sandbox
        self.permission_manager = PermissionManager(workspace.path, worker.task.permitted, tell=self._record_decision)
        self.result: WorkerResult | None = None
        self._began = time.monotonic()
        self._limit: str | None = None

    @property
    def resources(self) -> dict[str, float]:
        """What its commands used so far: the highest memory use, and all CPU time together."""
        return self._session.control.meter.resources

    @property
    def limits(self) -> ResourceLimits:
        """The limits of each command."""
        return self._session.worker.limits

    async def run(
        self, command: str | Sequence[str], *, timeout: float | None = None, stdin: bytes | None = None
    ) -> CommandResult:
        """Run *command* in the session's sandbox and workspace; a string is given to `sh -c`."""
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
        if not argv:
            raise BadInput("the command is empty; give a program")
        session = self._session.with_new_log()
        network = network_of(session.worker.task, session.worker.adapter)
        async with open_model(session, network, key=secrets.token_hex(4)) as model:
            return await self._run_with_model(session, model, argv, timeout, stdin)

    async def _run_with_model(
        self, session: Session, model: ModelAccess, argv: tuple[str, ...], timeout: float | None, stdin: bytes | None
    ) -> CommandResult:
        context = session.context
        sandboxed_command, policy = agent_command(session, argv, model=model)
        name = f"{session.id}-{secrets.token_hex(2)}"
        with context.enforcer.group(name, self.limits) as group, session.control.meter.hold(group):
            bounds = session_bounds(session, group)
            async with open_sandboxed(
                context.sandbox,
                replace(sandboxed_command, stdin=stdin or b""),
                policy,
                sink=session.log.feed,
                join=group.wrap,
                gone=group.end_rest,
                guard=context.guard,
                listen=model.listen,
            ) as process:
                seconds = _least(timeout, self.limits.time_seconds)
                seen = await watch_process(process, bounds, seconds, asyncio.Event(), context.grace)
        exit_, timed_out = seen.exit, seen.ending is Ending.TIME
        limit = "time" if timed_out else seen.limit or bounds.find_reached_limit(failed=exit_.code != 0)
        session.log.close()
        self._limit = limit or self._limit
        return CommandResult(
            exit_code=exit_.code,
            signal=exit_.signal,
            output=session.log.output,
            error=session.log.errors,
            timed_out=timed_out,
            limit=limit,
        )

    def _record_decision(self, decision: Decision) -> None:
        if self.result is None:  # the log is closed together with the session
            note_decision(self._session, decision)

    async def close(self) -> WorkerResult:
        """Import the work; files that could not be imported stay on disk and are named."""
        session, context, worker = self._session, self._session.context, self._session.worker
        database = await keep_database(session)
        work = await import_work(session)
        status = Status.FAILED if work.failure else Status.SUCCEEDED if work.commit else Status.NO_CHANGES
        result = WorkerResult(
            index=worker.index,
            session=session.id,
            status=status,
            error=work.failure,
            workspace=str(self.workspace),
            base=context.base.commit,
            limit=self._limit,
            resources=self.resources,
            duration_seconds=round(time.monotonic() - self._began, 3),
        )
        result = await add_patch(context, work, work.on(result, session.raw_files))
        result = database.add_to(result)
        self.result = mask_result(result, context.mask)
        ended = describe_end(context, worker, self.result)
        for event in ended:
            context.ledger.note(event)
        await context.ledger.forget(session.id)
        await context.ledger.append(*ended)
        return self.result


@contextlib.asynccontextmanager
async def hold_session(context: RunContext, worker: WorkerSpec) -> AsyncIterator[OpenSession]:
    """Open a session of a run for commands; on exit, its work is kept."""
    await context.ledger.append(describe_start(context, worker))
    async with open_session(context, worker) as opened:
        session = OpenSession(opened)
        try:
            yield session
        finally:
            await session.close()


def make_held_worker(step: str, index: int, limits: ResourceLimits | None) -> WorkerSpec:
    """Make the worker of a session for commands."""
    agent = AgentSpec(name=step, adapter="command", command=("true",))
    task = ResolvedTask(name=step, prompt="", agent=agent, limits=limits)
    return WorkerSpec(step=step, index=index, count=1, task=task, adapter=CommandAdapter())


def _least(*seconds: float | None) -> float | None:
    return min((bound for bound in seconds if bound is not None), default=None)
