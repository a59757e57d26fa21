"""`IsolatedAgentSession`: one session that a program holds open, with `with` or `async with`."""

import asyncio
import contextlib
import functools
import os
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from shoal.adapters.command import CommandAdapter as CommandAdapter
from shoal.errors import BadInput
from shoal.model.agent import AgentSpec
from shoal.model.database import DatabaseSettings
from shoal.model.events import RunEnded, RunStarted, StepEnded, StepStarted
from shoal.model.limits import ResourceLimits
from shoal.model.masking import name_short_secrets
from shoal.model.permissions import PermissionManager, Permissions
from shoal.model.plan import Plan, Step
from shoal.model.policy import NETWORKS, Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.status import Status, single_status
from shoal.runs.context import home_of, open_run
from shoal.runs.request import RunRequest
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.command_session import CommandResult, OpenSession
from shoal.sessions.context import RunContext
from shoal.sessions.host_probe import assert_room, probe_sandbox
from shoal.sessions.limit_watch import describe_limits
from shoal.sessions.open_session import open_session
from shoal.sessions.policy import note_grants
from shoal.sessions.session import describe_start
from shoal.sessions.session_dir import SessionDir
from shoal.sessions.session_thread import HeldWorkspace, SessionLoop
from shoal.sessions.worker import WorkerSpec
from shoal.store.paths import StatePaths


class IsolatedAgentSession:
    """Seed 002's session: a workspace, branch, database and sandbox of its own; its work is kept on exit.

    The program that holds it open can read and write its workspace, whoever the user is, so it is a linked worktree
    unless another strategy is requested. *secrets* are names of variables to take from the host's environment; their
    values are masked in all output. *permissions* are frozen when it is created. With *keep_database*, the agent's
    own database is stored with its results. *database_strategy* and *database* are as in the settings of a coordinator.
    All paths are known before it is opened; `with` and `async with` create them.
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
        secrets: Sequence[str] = (),
        permissions: Permissions | Mapping[str, object] | None = None,
        keep_database: bool = False,
        database_strategy: str = "per_agent",
        database: str | Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = dict(os.environ if environ is None else environ)
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,47}", session_id):
            raise BadInput(f"session id {session_id!r} must be small letters, digits and dashes, 48 at most")
        self._limits = limits if isinstance(limits, ResourceLimits | None) else ResourceLimits.of(limits)
        self._request = RunRequest(
            folder=Path(base_workspace),
            environ=environ,
            name=session_id,
            base=base,
            strategy=isolation_strategy,
            sandbox=sandbox,
            keep_database=keep_database,
            database=DatabaseSettings.of(database_strategy, database),
            run=f"{session_id}-{time.strftime('%Y%m%d')}-{token_hex(2)}",
        )
        self._secrets = _host_variables(secrets, environ)
        self._task = ResolvedTask(
            name=session_id,
            prompt="",
            agent=AgentSpec(name=session_id, adapter="command", command=("true",)),
            network=Network(network),
            limits=self._limits,
            env={**(env or {}), **self._secrets},
            secrets=frozenset(self._secrets),
            permissions=_session_permissions(permissions, self._secrets),
        )
        self.session_id = session_id
        self._job = _job(self._task)
        self._stack: contextlib.AsyncExitStack | None = None
        self._runner: SessionLoop | None = None
        self._session: OpenSession | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        """Open the session for synchronous code; inside a running loop, use `async with`."""
        if self._session is not None:
            raise BadInput(f"session {self.session_id!r} was opened before; make a new one")
        if _is_in_loop():
            raise BadInput("an event loop is running here: open the session with `async with`")
        self._runner = SessionLoop(self.session_id)
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
            plan = Plan(name=self.session_id, steps=(Step(name=self.session_id, task=self._task),))
            context = (await stack.enter_async_context(open_run(self._request, plan))).context
            assert_room(context.paths)
            worker = self._job
            stack.push_async_callback(self._run_ended, context, time.monotonic())
            await _record_intent(context, worker)
            session = await stack.enter_async_context(open_session(context, worker))
            if not session.workspace.is_visible:
                raise BadInput("an ordinary user's overlay is visible only in its sandbox; use `worktree` here")
            self._session = OpenSession(session)
            note_grants(session)
            stack.push_async_callback(self._session.close)
            self._stack = stack.pop_all()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the work, remove everything else."""
        if self._stack is not None:
            await self._stack.__aexit__(kind, error, trace)

    def run(
        self, command: str | Sequence[str], *, timeout: float | None = None, stdin: bytes | None = None
    ) -> CommandResult:
        """Run *command* in the session's sandbox and wait for it."""
        return self._loop.run(self._opened.run(command, timeout=timeout, stdin=stdin))

    def as_workspace(self) -> HeldWorkspace:
        """Return the workspace for an agent's tools, whichever way the session was opened."""
        return self._opened if self._runner is None else self._runner.lend(self._opened)

    async def _run_ended(self, context: RunContext, began: float) -> None:
        result = self._session.result if self._session else None
        status = Status.FAILED if result is None else result.status
        seconds = round(time.monotonic() - began, 3)
        over = single_status(status)
        step = StepEnded(run=context.run, step=self.session_id, status=over)
        await context.ledger.append(step, RunEnded(run=context.run, status=over, duration_seconds=seconds))

    @property
    def workspace(self) -> Path:
        """The files, which this program too can read and write once the session is open."""
        return self._foreseen.workspace if self._session is None else self._session.workspace

    @property
    def branch(self) -> str:
        """The branch that holds the work once the session is closed."""
        return self._job.branch

    @property
    def db_path(self) -> Path:
        """The agent's own database."""
        return self._foreseen.db_path if self._session is None else self._session.db_path

    @property
    def sandbox(self) -> Sandbox:
        """The session's sandbox; raises `Unavailable` if this host does not support it."""
        return self._foreseen.sandbox if self._session is None else self._session.sandbox

    @property
    def limits(self) -> ResourceLimits:
        """The limits of each command."""
        return self._job.limits

    @property
    def permission_manager(self) -> PermissionManager:
        """The session's permissions."""
        if self._session is None:
            return PermissionManager(self.workspace, self._task.permitted)
        return self._session.permission_manager

    @property
    def result(self) -> WorkerResult | None:
        """Its result once it is closed; `None` before."""
        return None if self._session is None else self._session.result

    @functools.cached_property
    def _foreseen(self) -> "_Foreseen":
        """Inspect the repository in a separate thread: the caller may or may not have an event loop."""
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, _foreseen(self._request, self._job)).result()

    @property
    def _opened(self) -> OpenSession:
        if self._session is None:
            raise BadInput("the session is not open; use it in a `with` or `async with` block")
        return self._session

    @property
    def _loop(self) -> SessionLoop:
        if self._session is None or self._is_closed:
            raise BadInput("the session is not open; use it in a `with` or `async with` block")
        if self._runner is None:
            raise BadInput(
                "the session was opened by `async with`; use the value that it gave you, and await its calls"
            )
        return self._runner


def _job(task: ResolvedTask) -> WorkerSpec:
    return WorkerSpec(step=task.name, index=0, count=1, task=task, adapter=CommandAdapter(), database=task.name)


@dataclass(frozen=True, slots=True)
class _Foreseen:
    """Where a session's files will be."""

    workspace: Path
    db_path: Path
    sandbox: Sandbox


async def _foreseen(request: RunRequest, worker: WorkerSpec) -> _Foreseen:
    paths = StatePaths.of(await home_of(request))
    session_dir = paths.session_dir(worker.session)
    disk = session_dir / "disk" if worker.limits.is_exact else session_dir
    directory = SessionDir(path=session_dir, disk=disk, session=worker.session, port=0, database_name=worker.database)
    return _Foreseen(
        paths.workspace(str(request.run), worker.step, 0),
        directory.database,
        await probe_sandbox(request.sandbox, request.environ),
    )


def _host_variables(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Take variables from the host by name."""
    missing = [name for name in names if name not in environ]
    if isinstance(names, str) or missing:
        wrong = f"the host has no variable {missing[0]!r}" if missing else "secrets are a list of names"
        raise BadInput(f"{wrong}; name variables that are set")
    return {name: environ[name] for name in names}


def _session_permissions(given: Permissions | Mapping[str, object] | None, secrets: Mapping[str, str]) -> Permissions:
    """Return the permissions; if they list no variables, those that were requested are allowed."""
    permissions = given if isinstance(given, Permissions) else Permissions.of(given or {})
    if permissions.env is None:
        return replace(permissions, env=tuple(secrets))
    if unlisted := [name for name in secrets if name not in permissions.env]:
        raise BadInput(f"{unlisted[0]!r} is not permitted; add it to the permissions' `env`")
    return permissions


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _network_note(worker: WorkerSpec) -> tuple[str, ...]:
    """Note that its commands can reach the network, if they can."""
    note = NETWORKS[worker.task.network].note if worker.task.network else ""
    return (note,) if note else ()


async def _record_intent(context: RunContext, worker: WorkerSpec) -> None:
    """Record the start, so that the next start of Shoal can import what a kill leaves."""
    started = RunStarted(
        run=context.run,
        name=worker.step,
        base=context.base.commit,
        wall=context.sandbox.name,
        workspace=context.kind.name,
        owner=os.getpid(),
        notes=(*_network_note(worker), *context.sandbox.gaps, *name_short_secrets(context.mask)),
        limits=f"{context.enforcer.name}: {describe_limits(worker.limits)} each",
    )
    step = StepStarted(run=context.run, step=worker.step, workers=1, on_failure="fail_fast")
    await context.ledger.append(started, step, describe_start(context, worker))
