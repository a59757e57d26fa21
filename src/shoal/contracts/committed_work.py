"""Implements `Workbench` on one session's commit: reads the repository, and runs commands in sandboxes."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.adapters.command import CommandAdapter
from shoal.adapters.kind import Adapter
from shoal.contracts.committed_files import blob, changes, patch
from shoal.contracts.workbench import BenchResult, Change
from shoal.git.refs import pin
from shoal.git.snapshot import revert_paths
from shoal.model.contract import AgentReview
from shoal.model.events import AgentActed, Event, Output
from shoal.model.executable_files import is_read_by_clients
from shoal.model.repository import Base
from shoal.model.resolved_task import ResolvedTask
from shoal.sessions.agent_process import AgentEnd, Ending
from shoal.sessions.context import RunContext
from shoal.sessions.open_session import open_session
from shoal.sessions.output_log import OutputLog
from shoal.sessions.policy import network_of
from shoal.sessions.session_control import SessionControl
from shoal.sessions.worker import Session, WorkerSpec
from shoal.store.paths import StatePaths
from shoal.workspaces.base_checkouts import base_ready, delta_ready
from shoal.workspaces.directory import Directory

RunnerFor = Callable[[WorkerSpec], Callable[[Session], Awaitable[AgentEnd]]]
"""Chooses how a worker runs in an open session."""

TAIL_CHARS = 64 * 1024
STOPPED = "it was stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewer:
    """A reviewer: its task, and the adapter that starts it."""

    task: ResolvedTask
    adapter: Adapter


@dataclass(frozen=True, slots=True)
class _NestedPaths(StatePaths):
    """The state paths, but with session directories inside that of the session under review.

    What a kill leaves of a check is then unmounted and removed together with that session.
    """

    inside: Path

    def session_dir(self, session: str) -> Path:
        del session
        return self.inside

    def workspace(self, run: str, step: str, index: int) -> Path:
        del run, step, index
        return self.inside / "tree"

    @property
    def workspaces(self) -> Path:
        return self.inside.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBench:
    """What *worker* committed on the base of *context*; *commit* is `None` if it changed nothing.

    *session_dir* must still exist. Setting *stop* ends whatever is running. Output goes to the log of the session.
    """

    context: RunContext
    worker: WorkerSpec
    commit: str | None
    session_dir: Path
    stop: asyncio.Event
    runner_for: RunnerFor
    reviewers: Mapping[str, Reviewer] = field(default_factory=dict)
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    spent: list[Mapping[str, float]] = field(default_factory=list)
    """The model usage of its reviewers."""
    setup_as: WorkerSpec | None = None
    """The worker whose set-up its checkouts get, if not *worker*."""
    word: str = "contract"
    """What a command is run for, in the log."""

    def mask(self, text: str) -> str:
        """Mask secrets of the host's environment."""
        return self.context.mask.text(text)

    async def read(self, path: str, limit: int) -> bytes | None:
        """Return the beginning of a regular file of the work."""
        return await blob(self.context.repository.git, self.commit or self.context.base.commit, path, limit)

    async def read_before(self, path: str, limit: int) -> bytes | None:
        """Return the beginning of a regular file of the base."""
        return await blob(self.context.repository.git, self.context.base.commit, path, limit)

    async def artifact(self, name: str, limit: int) -> bytes | None:
        """Return the beginning of an exported artifact."""
        content = self.artifacts.get(name)
        return None if content is None else content[:limit]

    async def changes(self) -> tuple[Change, ...]:
        """List the files that differ from the base."""
        if self.commit is None:
            return ()
        return await changes(self.context.repository.git, self.context.base.commit, self.commit)

    async def patch(self, limit: int) -> str:
        """Return the diff, with a note of how much was left out."""
        if self.commit is None:
            return ""
        return await patch(self.context.repository.git, self.context.base.commit, self.commit, limit)

    async def run(self, command: tuple[str, ...], timeout: float | None) -> BenchResult:
        """Run *command* as the worker could have: with its network, limits and variables, on the whole work."""
        task = self.worker.task
        agent = replace(task.agent, adapter="command", command=command, script=None, mind=None, made=None, timeout=None)
        worker = replace(
            self.worker,
            adapter=CommandAdapter(),
            function=None,
            task=replace(
                task,
                prompt="",
                agent=replace(agent, permissions=None),
                network=network_of(task, self.worker.adapter),
                permissions=replace(task.permitted, writable=(".",)) if task.has_permissions else None,
                timeout=timeout,
            ),
        )
        heard = _OutputTail(self.context.ledger.note)
        return await self._run_worker(worker, heard, f"{self.word}: {' '.join(command)}")

    async def review(self, contract: AgentReview, prompt: str) -> BenchResult:
        """Run the reviewer on *prompt* in its own sandbox, and return its stdout."""
        reviewer = self.reviewers.get(contract.reviewer)
        if reviewer is None:
            return BenchResult(exit_code=None, output="", failure=f"there is no reviewer {contract.reviewer}")
        timeout = contract.timeout if contract.timeout is not None else reviewer.task.timeout
        task = replace(reviewer.task, prompt=prompt, timeout=timeout)
        worker = replace(self.worker, adapter=reviewer.adapter, function=None, task=task)
        there = replace(self, commit=await self._without_orders())
        return await there._run_worker(worker, None, f"contract: review by {contract.reviewer}")

    async def _without_orders(self) -> str | None:
        """Return the work as its reviewer sees it: without agent settings and instructions that the worker wrote."""
        if self.commit is None:
            return None
        context = self.context
        commit = await revert_paths(context.repository, context.base.commit, self.commit, is_read_by_clients)
        if commit != self.commit:
            await pin(context.repository, context.run, commit)
        return commit

    async def _run_worker(self, worker: WorkerSpec, heard: "_OutputTail | None", title: str) -> BenchResult:
        if self.stop.is_set():
            return BenchResult(exit_code=None, output="", failure=STOPPED)
        context = self.context
        context.ledger.note(
            Output(run=context.run, session=worker.session, stream="stderr", text=context.mask.text(title))
        )
        note = heard.note if heard else context.ledger.note
        log = OutputLog(context.run, worker.session, note, context.mask, context.flood)
        async with self._open(worker) as session:
            ended = await self.runner_for(worker)(replace(session, log=log))
        output = heard.text if heard and not heard.is_cut else log.output + (log.errors if heard else "")
        if ended.usage:
            self.spent.append(ended.usage)
        return BenchResult(exit_code=ended.exit.code, output=output, failure=_failure(worker, ended), usage=ended.usage)

    @contextlib.asynccontextmanager
    async def _open(self, worker: WorkerSpec) -> AsyncIterator[Session]:
        """Open a workspace with the work in it; nothing of it is kept."""
        session_dir = self.session_dir / f"check-{secrets.token_hex(3)}"
        async with self._base() as base:
            # A linked worktree would need a branch; a copy does not.
            kind = self.context.kind if self.context.kind.has_layers else Directory()
            paths, trusted = _NestedPaths(self.context.paths.root, session_dir), self.context.trusted_base
            there = replace(self.context, base=base, kind=kind, paths=paths, trusted=trusted)
            control = SessionControl(stop=self.stop)
            async with open_session(there, worker, control=control, setup_as=self.setup_as) as session:
                yield session

    def _base(self) -> contextlib.AbstractAsyncContextManager[Base]:
        context = self.context
        if self.commit in (None, context.base.commit):
            return contextlib.nullcontext(context.base)
        if context.kind.has_layers:
            return delta_ready(context.repository, self.commit, context.base, context.paths.bases)
        return base_ready(context.repository, self.commit, context.paths.bases)


class _OutputTail:
    """Passes output to the log, and remembers the end of it."""

    def __init__(self, note: Callable[[Event], None]) -> None:
        self._note = note
        self.text = ""
        self.is_cut = False
        """Whether the log stopped taking output: then the end is missing here."""

    def note(self, event: Output | AgentActed) -> None:
        if isinstance(event, Output):
            self._hear(event)
        self._note(event)

    def _hear(self, event: Output) -> None:
        self.text = f"{self.text}{event.text}\n"[-TAIL_CHARS:]
        self.is_cut = self.is_cut or event.dropped > 0


def _failure(worker: WorkerSpec, ended: AgentEnd) -> str | None:
    if ended.ending is Ending.STOP:
        return STOPPED
    if ended.ending is Ending.TIME:
        return f"it was still running after {worker.seconds:g} s"
    if ended.ending is Ending.LIMIT:
        return f"it exceeded its {ended.limit} limit"
    if ended.failure is not None:
        return ended.failure
    return None if ended.exit.signal is None else f"it was killed by signal {ended.exit.signal}"
