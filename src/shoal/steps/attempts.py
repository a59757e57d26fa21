"""Run workers as sessions of one run: each in a slot of the limiter, on its own base, with retries."""

import asyncio
import contextlib
import hashlib
import itertools
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from shoal.errors import FAULTS, Refused
from shoal.executors.kind import Executor, SessionLost
from shoal.executors.local import LocalExecutor
from shoal.git.refs import pin
from shoal.model.budget import BUDGET
from shoal.model.events import Waiting
from shoal.model.masking import Mask
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
from shoal.sessions.talking import hold_peer
from shoal.sessions.worker import WorkerSpec
from shoal.steps.admission import Admission
from shoal.steps.children import Family, SpawnAllowance, open_family
from shoal.steps.history import AttemptKey, History, Salvage, Visit
from shoal.steps.prompt import next_attempt, with_interruption, with_rewind
from shoal.workspaces.base_checkouts import base_ready, delta_ready

DIGEST_CHARS = 16
MOST_LOST = 5
"""A session that is lost so often with its node may be the reason."""
MOST_RETIRED = 1000
"""So many workers are kept after their end, for a merge that repeats their work: a coordinator may run for weeks."""
APART_SECONDS = 0.05  # a cancel that comes before the last one was seen is one with it


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """The identity of a worker: its step and index."""

    step: str
    index: int


def _continue(worker: WorkerSpec, salvage: Salvage | None) -> WorkerSpec:
    """Let *worker* continue an interrupted attempt: in its conversation, with its files as work of an agent."""
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
    """Digest an agent's prompt and description, without the values of its variables."""
    agent = task.agent
    asked = (task.prompt, task.system_prompt, agent.adapter, agent.model, *agent.command, *agent.args)
    return hashlib.sha256(repr(asked).encode(errors="replace")).hexdigest()[:DIGEST_CHARS]


def _is_final(result: WorkerResult) -> bool:
    """Return whether no further attempt is made: it succeeded, a person stopped it, or its budget is spent."""
    return result.status.is_good or result.stopped_by is not None or result.limit == BUDGET


def is_good(result: WorkerResult) -> bool:
    """Return whether a session succeeded, for patterns that ask."""
    return result.status.is_good


class WorkerRunner:
    """The sessions of one run; *active* are running now, *results* has the last result of each worker."""

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
        """The recorded results from before the run was resumed."""
        self.active: dict[str, WorkerSpec] = {}
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._controls: dict[str, SessionControl] = {}
        self._stopped_by: str | None = None
        self._may_start = asyncio.Event()
        self._may_start.set()
        self.results: dict[WorkerKey, WorkerResult] = {}
        self.spent: dict[str, float] = sum_usage(self.history.usage)
        """The model usage of all sessions so far, retried ones included."""
        self.workers: dict[WorkerKey, WorkerSpec] = {}
        """The latest spec of each worker, for a caller that repeats its work."""
        self._admission = admission
        self._retired: deque[WorkerKey] = deque()
        self.while_at_work: Callable[[WorkerSpec], AbstractContextManager[None]] = lambda _: contextlib.nullcontext()
        """Entered for each session while it runs."""
        self.child_numbers: Counter[str] = Counter()
        """How many sessions each agent has started."""
        self.allowances: dict[str, SpawnAllowance] = {}
        """What sessions that were started by agents may start in turn, by their steps."""

    async def run(self, worker: WorkerSpec) -> WorkerResult:
        """Run *worker*, with retries; a cancelled one is in `results` too."""
        numbers = itertools.count(1)
        worker = replace(worker, content=digest_content(worker.task))
        self.workers[WorkerKey(worker.step, worker.index)] = worker

        async def attempt() -> WorkerResult:
            # Each attempt has a new workspace and branch: the work of the one before is kept separately.
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
                jitter=min(1.0, retry.wait_seconds),  # no wait means no jitter either
                retry_on=(),
                accept=_is_final,
            )
        return self.result(worker)

    def use_mask(self, mask: Mask) -> None:
        """Mask further secrets in everything from now on."""
        self.context = replace(self.context, mask=mask)
        if self.context.talk is not None:
            self.context.talk.mask = mask

    @property
    def is_stopped(self) -> bool:
        """Return whether no session starts any more."""
        return self._stopped_by is not None

    def has_succeeded(self, worker: WorkerSpec) -> bool:
        """Return whether *worker* had succeeded before the run was resumed."""
        content, attempts = digest_content(worker.task), range(1, worker.task.retry.max_attempts + 1)
        keys = (AttemptKey(Visit(worker.step, worker.visit), worker.index, number) for number in attempts)
        return any(result.status.is_good for key in keys if (result := self.history.result(key, content)) is not None)

    def result(self, worker: WorkerSpec) -> WorkerResult:
        """Return the last result of *worker*; one that never started was cancelled."""
        known = self.results.get(WorkerKey(worker.step, worker.index))
        return known or mask_result(worker.result_without_start(Status.CANCELLED), self.context.mask)

    def note(self, worker: WorkerSpec, result: WorkerResult) -> None:
        """Store the result of *worker* without secrets; a session's output has been masked already."""
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
        """Stop one session at the request of *by*: its agent is asked, then killed, and its work kept."""
        if (control := self._controls.get(session)) is not None:
            control.stop_for(by)

    def has_open_inbox(self, session: str) -> bool:
        """Return whether the agent of a running session still takes messages."""
        return session in self._controls and self._controls[session].inbox.is_open

    def send_message(self, session: str, message: AgentMessage) -> None:
        """Deliver *message* to the agent of *session* after its current turn."""
        if self.has_open_inbox(session):
            self._controls[session].inbox.put(message)

    def take_snapshot(self, session: str, request: str) -> None:
        """Keep the files of *session* as they are now, and record that as the answer to *request*."""
        if (control := self._controls.get(session)) is not None:
            control.snapshots.put_nowait(request)

    def pause(self, *, is_frozen: bool = False) -> None:
        """Start no session until `resume`; running ones continue, or are frozen with *is_frozen*."""
        self._may_start.clear()
        if not is_frozen:
            return
        try:
            for control in self._controls.values():
                control.freeze()
        except OSError as error:
            self._thaw()
            why = f"paused; the running agents could not be frozen: {error.strerror}"
            self.context.ledger.post(Waiting(run=self.context.run, reason=why))

    def _thaw(self) -> None:
        for control in self._controls.values():
            control.thaw()

    def resume(self) -> None:
        """Start sessions again, and thaw frozen ones."""
        self._thaw()
        self._may_start.set()

    def stop_all(self, by: str) -> None:
        """Stop every session at the request of *by*, and start no more."""
        self._stopped_by = by
        self.resume()
        for control in self._controls.values():
            control.stop_for(by)

    def end_at_once(self) -> None:
        """Cancel every session again: the next start of Shoal imports the work that they have not imported."""
        loop = asyncio.get_running_loop()
        for task in self._tasks.values():
            loop.call_later(APART_SECONDS, task.cancel)

    async def _attempt(self, worker: WorkerSpec) -> WorkerResult:
        """Run one attempt in a slot; what its agent has started may work on when it has ended."""
        async with open_family(self, worker, self.allowances) as family:
            async with (
                self.limiter.slot(run=self.context.run, priority=worker.task.priority),
                contextlib.nullcontext() if family is None else family.hold_slot(),
            ):
                result = await self._attempt_in_slot(worker, family)
            if family is not None:
                await family.finish(result)
            return result

    async def _attempt_in_slot(self, worker: WorkerSpec, family: Family | None) -> WorkerResult:
        await self._may_start.wait()
        if self._stopped_by is not None:
            return self._note_unstarted(worker, self._stopped_by)
        if worker.base in (None, self.context.base.commit):
            return await self._until_known(worker.adapt_context(self.context), worker, family)
        return await self._elsewhere(worker, worker.base, family)

    def _note_unstarted(self, worker: WorkerSpec, by: str) -> WorkerResult:
        unstarted = worker.result_without_start(Status.CANCELLED, f"stopped by {by}")
        self.note(worker, replace(unstarted, stopped_by=by))
        return self.result(worker)

    async def _elsewhere(self, worker: WorkerSpec, base: str, family: Family | None) -> WorkerResult:
        """Run *worker* from a commit other than the run's."""
        async with contextlib.AsyncExitStack() as held:
            try:
                context = await held.enter_async_context(self._based(worker, base))
            except FAULTS as error:  # its base is gone, which affects this worker only
                self.note(worker, worker.result_without_start(Status.FAILED, f"it cannot start from {base}: {error}"))
                return self.result(worker)
            return await self._until_known(context, worker, family)

    async def _until_known(self, context: RunContext, worker: WorkerSpec, family: Family | None) -> WorkerResult:
        """Run a session, and again while its outcome is unknown; that counts as no attempt."""
        for _ in range(MOST_LOST):
            self.workers[WorkerKey(worker.step, worker.index)] = worker
            try:
                return await self._session(context, worker, family)
            except SessionLost as lost:
                last = lost.result
            if self._stopped_by is not None:
                return self._note_unstarted(worker, self._stopped_by)
            worker = replace(worker, hex=secrets.token_hex(3))
        self.note(worker, last)
        return self.result(worker)

    async def _session(self, context: RunContext, worker: WorkerSpec, family: Family | None) -> WorkerResult:
        self.active[worker.session] = worker
        if family is not None:
            family.parent = worker  # under another name, if the outcome of the session before it is unknown
        if (task := asyncio.current_task()) is not None:
            self._tasks[worker.session] = task
        control = SessionControl(inbox=Inbox(is_open=worker.takes_messages))
        self._controls[worker.session] = control
        try:
            with (
                self._admission.carried(),
                hold_peer(context, worker, control.inbox, family),
                self.while_at_work(worker),
            ):
                return await self._executor.run(context, worker, lambda result: self.note(worker, result), control)
        finally:
            del self.active[worker.session]
            self._tasks.pop(worker.session, None)
            del self._controls[worker.session]

    @contextlib.asynccontextmanager
    async def _based(self, worker: WorkerSpec, commit: str) -> AsyncIterator[RunContext]:
        context = worker.adapt_context(self.context)
        aside = await set_aside_settings(context, worker, commit)
        start = commit if aside is None else aside.start
        await pin(context.repository, context.run, start)
        async with open_base(context, start) as base:
            trusted = base if worker.trusts_base else context.trusted_base
            yield replace(context, base=base, base_stays=False, aside=aside, trusted=trusted)


def open_base(context: RunContext, commit: str) -> contextlib.AbstractAsyncContextManager[Base]:
    """Hold the checkout of *commit*: only what differs from the run's base, if a layer on top of that is possible."""
    if context.kind.has_layers:
        return delta_ready(context.repository, commit, context.base, context.paths.bases, on_gather=context.on_gather)
    return base_ready(context.repository, commit, context.paths.bases, on_gather=context.on_gather)
