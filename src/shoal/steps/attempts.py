"""Run workers as sessions of one run: each in a slot of the limiter, on its own base, with retries."""

import asyncio
import contextlib
import hashlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from shoal.errors import FAULTS, Refused
from shoal.executors.kind import Executor
from shoal.executors.local import LocalExecutor
from shoal.git.refs import pin
from shoal.model.events import Waiting
from shoal.model.repository import Base
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult, sum_usage
from shoal.model.status import Status
from shoal.patterns.limiter import Limiter
from shoal.patterns.retry import retrying
from shoal.sessions.client_settings import set_aside_settings
from shoal.sessions.context import RunContext
from shoal.sessions.saved_conversations import is_valid_name
from shoal.sessions.session import mask_result
from shoal.sessions.session_control import AgentMessage, Inbox, SessionControl
from shoal.sessions.worker import WorkerSpec
from shoal.steps.admission import Admission
from shoal.steps.history import AttemptKey, History, Salvage, Visit
from shoal.steps.prompt import next_attempt, with_interruption, with_rewind
from shoal.workspaces.base_checkouts import base_ready, delta_ready

DIGEST_CHARS = 16
MOST_RETIRED = 1000
"""So many workers are kept after their end, for a merge that repeats their work: a coordinator may run for weeks."""
APART_SECONDS = 0.05  # a cancel that comes before the last one was seen is one with it


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """Whose result it is: a worker of a step."""

    step: str
    index: int


def _continue(worker: WorkerSpec, salvage: Salvage | None) -> WorkerSpec:
    """Let *worker* go on where an interrupted attempt was: in its conversation, with its files as work of an agent."""
    if salvage is None:
        return worker
    conversation = salvage.client_session if is_valid_name(salvage.client_session) else None
    worker = replace(worker, conversation=conversation, spent_before=salvage.usage)
    if salvage.checkpoint:
        worker = replace(worker, start_note=f"started from checkpoint {salvage.checkpoint} of {salvage.session}")
    if salvage.commit is None:
        return worker
    say = with_rewind if salvage.checkpoint else with_interruption
    task = replace(worker.task, prompt=say(worker.task.prompt))
    return replace(worker, base=salvage.commit, origin=salvage.origin, trusts_base=False, task=task)


def digest_content(task: ResolvedTask) -> str:
    """Digest what an agent is asked, and which agent: its own description, without the values of its variables."""
    agent = task.agent
    asked = (task.prompt, task.system_prompt, agent.adapter, agent.model, *agent.command, *agent.args)
    return hashlib.sha256(repr(asked).encode(errors="replace")).hexdigest()[:DIGEST_CHARS]


def _is_final(result: WorkerResult) -> bool:
    """Say whether no further attempt is made: the work is good, or a person stopped the session."""
    return result.status.is_good or result.stopped_by is not None


def is_good(result: WorkerResult) -> bool:
    """Say whether a session ended well, for patterns that ask."""
    return result.status.is_good


class WorkerRunner:
    """The sessions of one run; *active* are those that run now, *results* the last result of each worker."""

    def __init__(
        self,
        context: RunContext,
        limiter: Limiter,
        admission: Admission,
        history: History | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.context = context
        self._executor = executor or LocalExecutor()
        self.limiter = limiter
        self.history = history or History()
        """What the run came to before it was resumed."""
        self.active: dict[str, WorkerSpec] = {}
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._controls: dict[str, SessionControl] = {}
        self._stopped_by: str | None = None
        self._may_start = asyncio.Event()
        self._may_start.set()
        self.results: dict[WorkerKey, WorkerResult] = {}
        self.spent: dict[str, float] = sum_usage(self.history.usage)
        """What all sessions spent on models so far, those that were tried again too."""
        self.workers: dict[WorkerKey, WorkerSpec] = {}
        """The latest spec of each worker, for a caller that repeats its work."""
        self._admission = admission
        self._retired: deque[WorkerKey] = deque()

    async def run(self, worker: WorkerSpec) -> WorkerResult:
        """Run *worker*, again while it fails and has attempts left; a cancelled one is in `results` too."""
        numbers = itertools.count(1)
        worker = replace(worker, content=digest_content(worker.task))
        self.workers[WorkerKey(worker.step, worker.index)] = worker

        async def attempt() -> WorkerResult:
            # A fresh workspace and a new branch for each: what the former one wrote is kept on its own.
            number = next(numbers)
            key = AttemptKey(Visit(worker.step, worker.visit), worker.index, number)
            if (recorded := self.history.result(key, worker.content)) is not None:
                self.results[WorkerKey(worker.step, worker.index)] = recorded
                return recorded
            this = worker if number == 1 else next_attempt(worker, number, self.result(worker))
            return await self._attempt(_continue(this, self.history.salvage(key, worker.content)))

        retry = worker.task.retry
        if retry.max_attempts == 1:
            return await attempt()
        with contextlib.suppress(Refused):
            return await retrying(
                attempt,
                attempts=retry.max_attempts,
                wait_initial=retry.wait_seconds,
                wait_max=retry.longest_seconds,
                jitter=min(1.0, retry.wait_seconds),  # no wait at all is meant where none is asked for
                retry_on=(),
                accept=_is_final,
            )
        return self.result(worker)

    def has_succeeded(self, worker: WorkerSpec) -> bool:
        """Say whether *worker* had ended well before the run was resumed."""
        content, attempts = digest_content(worker.task), range(1, worker.task.retry.max_attempts + 1)
        keys = (AttemptKey(Visit(worker.step, worker.visit), worker.index, number) for number in attempts)
        return any(result.status.is_good for key in keys if (result := self.history.result(key, content)) is not None)

    def result(self, worker: WorkerSpec) -> WorkerResult:
        """Give the last result of *worker*; one that never started was cancelled."""
        known = self.results.get(WorkerKey(worker.step, worker.index))
        return known or mask_result(worker.result_without_start(Status.CANCELLED), self.context.mask)

    def note(self, worker: WorkerSpec, result: WorkerResult) -> None:
        """Keep the result of *worker* without secrets; a session's output has been masked already."""
        self.results[WorkerKey(worker.step, worker.index)] = (
            result if result.attempts else mask_result(result, self.context.mask)
        )
        if result.usage:
            self.spent = sum_usage((self.spent, result.usage))

    def retire(self, workers: Sequence[WorkerSpec]) -> None:
        """Forget *workers*, which have ended, once so many others have ended after them."""
        self._retired.extend(WorkerKey(worker.step, worker.index) for worker in workers)
        while len(self._retired) > MOST_RETIRED:
            self.forget(self._retired.popleft())

    def forget(self, worker: WorkerKey) -> None:
        """Forget the result of a worker that nobody will ask for again."""
        self.results.pop(worker, None)
        self.workers.pop(worker, None)

    def stop_session(self, session: str, by: str) -> None:
        """Stop one session for *by*: its agent is asked, then killed; its work is kept, and the others go on."""
        if (control := self._controls.get(session)) is not None:
            control.stop_for(by)

    def has_open_inbox(self, session: str) -> bool:
        """Say whether the agent of a session that runs still takes messages."""
        return session in self._controls and self._controls[session].inbox.is_open

    def send_message(self, session: str, message: AgentMessage) -> None:
        """Give *message* to the agent of *session*, after the turn that it is at."""
        if self.has_open_inbox(session):
            self._controls[session].inbox.put(message)

    def take_snapshot(self, session: str, request: str) -> None:
        """Keep the files of *session* as they are now, and record that as the answer to *request*."""
        if (control := self._controls.get(session)) is not None:
            control.snapshots.put_nowait(request)

    def pause(self, *, is_frozen: bool = False) -> None:
        """Start no session until `resume`; those that run go on, or stand still where that is asked for."""
        self._may_start.clear()
        if not is_frozen:
            return
        try:
            for control in self._controls.values():
                control.freeze()
        except OSError as error:
            self._thaw()
            why = f"paused; the agents that run could not be frozen: {error.strerror}"
            self.context.ledger.post(Waiting(run=self.context.run, reason=why))

    def _thaw(self) -> None:
        for control in self._controls.values():
            control.thaw()

    def resume(self) -> None:
        """Start sessions again, and let those that stand still go on."""
        self._thaw()
        self._may_start.set()

    def stop_all(self, by: str) -> None:
        """Stop every session for *by*, and start none from now on."""
        self._stopped_by = by
        self.resume()
        for control in self._controls.values():
            control.stop_for(by)

    def end_at_once(self) -> None:
        """Cancel every session once more: what it has not brought in yet, the next start does."""
        loop = asyncio.get_running_loop()
        for task in self._tasks.values():
            loop.call_later(APART_SECONDS, task.cancel)

    async def _attempt(self, worker: WorkerSpec) -> WorkerResult:
        async with self.limiter.slot(run=self.context.run, priority=worker.task.priority):
            await self._may_start.wait()
            if self._stopped_by is not None:
                return self._note_unstarted(worker, self._stopped_by)
            if worker.base in (None, self.context.base.commit):
                return await self._session(worker.context(self.context), worker)
            return await self._elsewhere(worker, worker.base)

    def _note_unstarted(self, worker: WorkerSpec, by: str) -> WorkerResult:
        unstarted = worker.result_without_start(Status.CANCELLED, f"stopped by {by}")
        self.note(worker, replace(unstarted, stopped_by=by))
        return self.result(worker)

    async def _elsewhere(self, worker: WorkerSpec, base: str) -> WorkerResult:
        """Run *worker* from another commit than the run's."""
        async with contextlib.AsyncExitStack() as held:
            try:
                context = await held.enter_async_context(self._based(worker, base))
            except FAULTS as error:  # its base is gone: the trouble of this one alone
                self.note(worker, worker.result_without_start(Status.FAILED, f"it cannot start from {base}: {error}"))
                return self.result(worker)
            return await self._session(context, worker)

    async def _session(self, context: RunContext, worker: WorkerSpec) -> WorkerResult:
        self.active[worker.session] = worker
        if (task := asyncio.current_task()) is not None:
            self._tasks[worker.session] = task
        control = SessionControl(inbox=Inbox(is_open=worker.takes_messages))
        self._controls[worker.session] = control
        try:
            with self._admission.carried():
                return await self._executor.run(context, worker, lambda result: self.note(worker, result), control)
        finally:
            del self.active[worker.session]
            self._tasks.pop(worker.session, None)
            del self._controls[worker.session]

    @contextlib.asynccontextmanager
    async def _based(self, worker: WorkerSpec, commit: str) -> AsyncIterator[RunContext]:
        context = worker.context(self.context)
        aside = await set_aside_settings(context, worker, commit)
        start = commit if aside is None else aside.start
        await pin(context.repository, context.run, start)
        async with _base(context, start) as base:
            trusted = base if worker.trusts_base else context.trusted_base
            yield replace(context, base=base, base_stays=False, aside=aside, trusted=trusted)


def _base(context: RunContext, commit: str) -> contextlib.AbstractAsyncContextManager[Base]:
    """Check out only what differs from the run's base, where a layer over it will do."""
    if context.kind.has_layers:
        return delta_ready(context.repository, commit, context.base, context.paths.bases, on_gather=context.on_gather)
    return base_ready(context.repository, commit, context.paths.bases, on_gather=context.on_gather)
