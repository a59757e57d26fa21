"""`IsolatedAgentSession`: one session held open by a program of the host's, as `with` and as `async with`."""

import asyncio
import contextlib
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.adapters.command import Command as CommandAdapter
from shoal.engine.behind import boxed
from shoal.engine.job import Job
from shoal.engine.lease import Lease
from shoal.engine.prepare import Ask, prepared
from shoal.engine.session import agent_box, bounded, bring_in, intent, opened, record
from shoal.engine.site import Site
from shoal.engine.sweep import sweep
from shoal.engine.touched import Fingerprint
from shoal.engine.watch import Ending, watched
from shoal.engine.words import Words
from shoal.errors import BadInput
from shoal.model.events import RunEnded, RunStarted, StepEnded, StepStarted
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import PermissionManager
from shoal.model.policy import Network
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.model.task import AgentSpec, Task
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

    def __init__(self, site: Site, job: Job, workspace: Workspace, lease: Lease, before: Fingerprint | None) -> None:
        self._site = site
        self._job = job
        self._open = workspace
        self._lease = lease
        self._before = before
        self.session_id = job.step
        self.workspace = workspace.path
        self.branch = job.branch
        self.db_path = lease.database
        self.sandbox: Sandbox = site.sandbox
        self.permission_manager = PermissionManager(workspace.path)
        self.result: WorkerResult | None = None

    @property
    def limits(self) -> ResourceLimits:
        """What each command in it may spend."""
        return self._job.limits

    async def run(self, command: str | Sequence[str], *, timeout: float | None = None) -> CommandResult:
        """Run *command* behind the session's wall, in its workspace; a string is given to `sh -c`."""
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
        if not argv:
            raise BadInput("the command is empty; give a program")
        boxed_command, policy = agent_box(self._site, self._job, self._open, self._lease, argv)
        words = Words(self._site.run, self._job.session, self._site.ledger.note, self._site.mask)
        with self._site.enforcer.group(f"{self._job.session}-{secrets.token_hex(2)}", self.limits) as group:
            bounds = bounded(self._site, self._job, self._open, self._lease, group)
            async with boxed(self._site.sandbox, boxed_command, policy, sink=words.feed, join=group.wrap) as box:
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

    async def close(self) -> WorkerResult:
        """Bring the work in; what could not be brought in stays on disk and is named."""
        work = await bring_in(self._site, self._job, self._open, self._lease, self._before)
        status = Status.FAILED if work.failure else Status.SUCCEEDED if work.commit else Status.NO_CHANGES
        result = WorkerResult(index=0, session=self._job.session, status=status, error=work.failure)
        self.result = work.on(replace(result, workspace=str(self.workspace)), self._lease.box)
        await self._site.ledger.forget(self._job.session)
        await self._site.ledger.append(*record(self._site, self._job, self.result))
        return self.result


class IsolatedAgentSession:
    """Seed 002's session: a workspace, branch, database and wall of its own; its work is kept on leaving.

    Its workspace can be read and written by the program that holds it open, whoever the user is, so it is a
    linked worktree unless another strategy is asked for.
    """

    def __init__(
        self,
        session_id: str,
        base_workspace: Path | str = Path(),
        *,
        isolation_strategy: str = "worktree",
        sandbox: str = "bubblewrap",
        network: Network | str = Network.NONE,
        base: str | None = None,
        limits: ResourceLimits | Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,47}", session_id):
            raise BadInput(f"session id {session_id!r} must be small letters, digits and dashes, 48 at most")
        self._limits = limits if isinstance(limits, ResourceLimits | None) else ResourceLimits.of(limits)
        self._ask = Ask(
            folder=Path(base_workspace),
            environ=dict(os.environ),
            name=session_id,
            base=base,
            strategy=isolation_strategy,
            sandbox=sandbox,
        )
        agent = AgentSpec(name=session_id, adapter="command", command=("true",))
        self._task = Task(
            name=session_id, prompt="", agent=agent, network=Network(network), limits=self._limits, env=dict(env or {})
        )
        self.session_id = session_id
        self._stack: contextlib.AsyncExitStack | None = None
        self._runner: asyncio.Runner | None = None
        self._session: OpenSession | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        """Open the session for plain code; inside a running loop, use `async with`."""
        if self._session is not None:
            raise BadInput(f"session {self.session_id!r} was open already; make a new one")
        if _is_in_loop():
            raise BadInput("a loop is running here: open the session by `async with`")
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self.__aenter__())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the work, remove everything else."""
        with self._loop as runner:
            runner.run(self.__aexit__(kind, error, trace))
        self._is_closed = True

    async def __aenter__(self) -> OpenSession:
        """Open the session."""
        async with contextlib.AsyncExitStack() as stack:
            site = await stack.enter_async_context(prepared(self._ask))
            await sweep(site)
            job = Job(
                step=self.session_id,
                index=0,
                count=1,
                task=self._task,
                adapter=CommandAdapter(),
                database=self.session_id,
            )
            stack.push_async_callback(self._run_ended, site, time.monotonic())
            path = await _announced(site, job)
            workspace, lease, before = await stack.enter_async_context(opened(site, job, path))
            if not workspace.is_visible:
                raise BadInput("an overlay of an ordinary user is seen only in its box; use `worktree` here")
            self._session = OpenSession(site, job, workspace, lease, before)
            stack.push_async_callback(self._session.close)
            self._stack = stack.pop_all()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the work, remove everything else."""
        if self._stack is not None:
            await self._stack.__aexit__(kind, error, trace)

    def run(self, command: str | Sequence[str], *, timeout: float | None = None) -> CommandResult:
        """Run *command* behind the session's wall and wait for it."""
        return self._loop.run(self._opened.run(command, timeout=timeout))

    async def _run_ended(self, site: Site, began: float) -> None:
        result = self._session.result if self._session else None
        status = Status.FAILED if result is None else result.status
        seconds = round(time.monotonic() - began, 3)
        over = Status.SUCCEEDED if status.is_good else Status.FAILED
        step = StepEnded(run=site.run, step=self.session_id, status=over)
        await site.ledger.append(step, RunEnded(run=site.run, status=over, duration_seconds=seconds))

    @property
    def workspace(self) -> Path:
        """The files, readable and writable by this program too."""
        return self._opened.workspace

    @property
    def branch(self) -> str:
        """The branch that holds the work when the session is closed."""
        return self._opened.branch

    @property
    def db_path(self) -> Path:
        """The agent's own database."""
        return self._opened.db_path

    @property
    def sandbox(self) -> Sandbox:
        """The wall that is up."""
        return self._opened.sandbox

    @property
    def limits(self) -> ResourceLimits:
        """What each command in it may spend."""
        return self._opened.limits

    @property
    def permission_manager(self) -> PermissionManager:
        """What may be touched."""
        return self._opened.permission_manager

    @property
    def result(self) -> WorkerResult | None:
        """What came of it, once it is closed."""
        return self._opened.result

    @property
    def _opened(self) -> OpenSession:
        if self._session is None:
            raise BadInput("the session is not open; use it in a `with` or `async with` block")
        return self._session

    @property
    def _loop(self) -> asyncio.Runner:
        if self._session is None or self._is_closed:
            raise BadInput("the session is not open; use it in a `with` or `async with` block")
        if self._runner is None:
            raise BadInput("the session was opened by `async with`; await what that gave you")
        return self._runner


def _least(*seconds: float | None) -> float | None:
    return min((one for one in seconds if one is not None), default=None)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _announced(site: Site, job: Job) -> Path:
    """Write the intent, so that a kill leaves something that the next start can bring in."""
    path = site.paths.workspace(site.run, job.step, 0)
    started = RunStarted(
        run=site.run,
        name=job.step,
        base=site.base.commit,
        wall=site.sandbox.name,
        workspace=site.kind.name,
        owner=os.getpid(),
        notes=site.sandbox.gaps,
    )
    step = StepStarted(run=site.run, step=job.step, workers=1, on_failure="fail_fast")
    await site.ledger.append(started, step, intent(site, job, path))
    return path
