"""`IsolatedAgentSession`: one session held open by a program of the host's, as `with` and as `async with`."""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.adapters.command import Command as CommandAdapter
from shoal.engine.agent_box import note_grants
from shoal.engine.grants import granted
from shoal.engine.ground import assert_exact_disk, assert_room
from shoal.engine.held import CommandResult, OpenSession
from shoal.engine.job import Job
from shoal.engine.prepare import Ask, prepared
from shoal.engine.quarters import opened
from shoal.engine.session import intent, unmasked
from shoal.engine.site import Site
from shoal.engine.sweep import sweep
from shoal.errors import BadInput
from shoal.model.agent import AgentSpec
from shoal.model.assignment import Assignment
from shoal.model.events import RunEnded, RunStarted, StepEnded, StepStarted
from shoal.model.limits import ResourceLimits
from shoal.model.masking import Mask
from shoal.model.permissions import PermissionManager, Permissions
from shoal.model.policy import Network
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.sandboxes.kind import Sandbox


class IsolatedAgentSession:
    """Seed 002's session: a workspace, branch, database and wall of its own; its work is kept on leaving.

    Its workspace can be read and written by the program that holds it open, whoever the user is, so it is a
    linked worktree unless another strategy is asked for. *secrets* are names of variables to take from the host's
    environment; their values are masked wherever the session speaks. *permissions* are frozen when it is made.
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
        self._secrets = _taken(secrets, os.environ)
        self._task = Assignment(
            name=session_id,
            prompt="",
            agent=agent,
            network=Network(network),
            limits=self._limits,
            env={**(env or {}), **self._secrets},
            secrets=frozenset(self._secrets),
            permissions=_permitted(permissions, self._secrets),
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
            ground = await stack.enter_async_context(prepared(self._ask))
            site = replace(ground, mask=Mask.of(self._secrets))
            granted(site, self._task, CommandAdapter())
            assert_room(site.paths)
            if self._task.limits is not None and self._task.limits.is_exact:
                await assert_exact_disk(site.sandbox, site.paths)
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
            workspace, lease, spare = await stack.enter_async_context(opened(site, job, path))
            if not workspace.is_visible:
                raise BadInput("an overlay of an ordinary user is seen only in its box; use `worktree` here")
            self._session = OpenSession(site, job, workspace, lease, spare)
            note_grants(site, job)
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
        """Run *command* behind the session's wall and wait for it."""
        return self._loop.run(self._opened.run(command, timeout=timeout, stdin=stdin))

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


def _taken(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Take variables from the host by their names."""
    missing = [name for name in names if name not in environ]
    if isinstance(names, str) or missing:
        wrong = f"the host has no variable {missing[0]!r}" if missing else "secrets are a list of names"
        raise BadInput(f"{wrong}; name variables that are set")
    return {name: environ[name] for name in names}


def _permitted(given: Permissions | Mapping[str, object] | None, secrets: Mapping[str, str]) -> Permissions:
    """Say what is permitted; where no variables are listed, those that were asked for are."""
    permissions = given if isinstance(given, Permissions) else Permissions.of(given or {})
    if permissions.env is None:
        return replace(permissions, env=tuple(secrets))
    if unlisted := [name for name in secrets if name not in permissions.env]:
        raise BadInput(f"{unlisted[0]!r} may not be taken from the host; add it to the permissions' `env`")
    return permissions


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
        notes=(*site.sandbox.gaps, *unmasked(site.mask)),
    )
    step = StepStarted(run=site.run, step=job.step, workers=1, on_failure="fail_fast")
    await site.ledger.append(started, step, intent(site, job, path))
    return path
