"""The queues of one run: tasks that agents add, and that the workers of steps take, each once."""

import asyncio
import contextlib
import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shoal.errors import Refused, UnknownName, first_error
from shoal.model.plan import Plan, local_name
from shoal.model.queue import QueuedTask, QueueEvent, QueueSpec, TaskQueued, TaskTaken
from shoal.model.results import WorkerResult
from shoal.model.status import Rule
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerRunner
from shoal.steps.workers import WorkerTemplate
from shoal.store.ledger import Ledger
from shoal.talk.kind import AddedTask, CallRefused

MOST_IN_A_CALL = 100
COMMON = ""
"""The place of tasks that no step has to itself."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A task in a queue, with its place in the order of arrival."""

    number: int
    task: QueuedTask

    @property
    def label(self) -> str:
        """Name it in reports."""
        return self.task.key or f"task {self.number + 1}"


class TaskQueue:
    """One queue: it is dry once nothing waits in it, and nobody who could add to it is at work.

    What changes is recorded first, so a resumed run continues with the same tasks, each with the step that took it.
    """

    def __init__(self, spec: QueueSpec, run: str, ledger: Ledger, steps: Iterable[str]) -> None:
        self.spec = spec
        self._run = run
        self._ledger = ledger
        self._steps = set(steps)
        """The steps that have not ended, and take from it."""
        self._entries: list[Entry] = []
        self._known: dict[str, Entry] = {}
        self._waiting: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._again: defaultdict[str, list[int]] = defaultdict(list)
        """What each step had taken before the run was resumed."""
        self._at_work = 0
        self._producers = 0
        self._adding = asyncio.Lock()
        self._changed = asyncio.Event()

    def restore(self, events: Sequence[QueueEvent]) -> None:
        """Continue with what was recorded before the run was resumed."""
        taken: dict[int, str] = {}
        for event in events:
            if isinstance(event, TaskQueued):
                self._keep(Entry(event.number, event.task))
            else:
                taken[event.number] = event.step
        for entry in self._entries:
            if entry.number in taken:
                self._again[taken[entry.number]].append(entry.number)
            else:
                self._put(entry)

    async def seed(self) -> None:
        """Add the tasks of the file, unless they are there already."""
        async with self._adding:
            await self._add(self.spec.tasks, "", "")

    async def add(self, tasks: Sequence[QueuedTask], by: str, session: str) -> list[AddedTask]:
        """Add *tasks* of an agent: all of them or, with `CallRefused`, none."""
        if len(tasks) > MOST_IN_A_CALL:
            raise CallRefused(f"at most {MOST_IN_A_CALL} tasks in one call, not {len(tasks)}")
        async with self._adding:  # whoever hears that a task is there already may rely on its record
            if not self._steps:
                raise CallRefused(f"the queue {self.spec.name} is closed: no step takes tasks from it any more")
            return await self._add(tasks, by, session)

    async def take(self, step: str) -> Entry | None:
        """Take the next task for *step*; wait for one, or return `None` once the queue is dry."""
        while True:
            if self._again[step]:
                self._at_work += 1
                return self._entries[self._again[step].pop(0)]
            if (entry := self._next(local_name(step))) is not None:
                self._at_work += 1
                await self._ledger.append(
                    TaskTaken(run=self._run, queue=self.spec.name, number=entry.number, step=step)
                )
                return entry
            if not self._at_work and not self._producers and not any(self._again.values()):
                return None
            await self._changed.wait()

    def finish(self) -> None:
        """Note that a task which was taken is no longer worked on."""
        self._at_work -= 1
        self._wake()

    def leave(self, step: str) -> None:
        """Note that *step* takes no more tasks."""
        self._steps.discard(step)
        self._again.pop(step, None)
        self._wake()

    def list_taken(self, step: str) -> list[Entry]:
        """Return what *step* had taken before the run was resumed."""
        return [self._entries[number] for number in self._again[step]]

    @contextlib.contextmanager
    def hold_producer(self) -> Iterator[None]:
        """Keep the queue from being dry while the block runs: an agent that may add to it works there."""
        self._producers += 1
        try:
            yield
        finally:
            self._producers -= 1
            self._wake()

    async def _add(self, tasks: Sequence[QueuedTask], by: str, session: str) -> list[AddedTask]:
        new: dict[str, Entry] = {}
        for task in tasks:
            if task.identity not in self._known and task.identity not in new:
                new[task.identity] = Entry(len(self._entries) + len(new), task)
        if (total := len(self._entries) + len(new)) > self.spec.most:
            most = f"the queue {self.spec.name} may have {self.spec.most} tasks"
            raise CallRefused(f"{most}, and this would make {total}; none was added")
        if new:
            await self._ledger.append(*(self._event(entry, by, session) for entry in new.values()))
        answers = [
            AddedTask(number=(new.get(task.identity) or self._known[task.identity]).number + 1, is_new=is_new)
            for task in tasks
            for is_new in [task.identity in new]
        ]
        for entry in new.values():
            self._keep(entry)
            self._put(entry)
        self._wake()
        return answers

    def _event(self, entry: Entry, by: str, session: str) -> TaskQueued:
        name = self.spec.name
        return TaskQueued(run=self._run, queue=name, number=entry.number, task=entry.task, by=by, session=session)

    def _keep(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._known[entry.task.identity] = entry

    def _put(self, entry: Entry) -> None:
        heapq.heappush(self._waiting[entry.task.step], (-entry.task.priority, entry.number))

    def _next(self, step: str) -> Entry | None:
        """Return the first task of *step* or of nobody; if there is none, one of the step that has the most."""
        own = [heap for name in {COMMON, step} if (heap := self._waiting[name])]
        heap = min(own, key=lambda heap: heap[0]) if own else max(self._waiting.values(), key=len, default=[])
        return self._entries[heapq.heappop(heap)[1]] if heap else None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class TaskQueues:
    """All queues of a run, by name."""

    def __init__(self, plan: Plan, run: str, ledger: Ledger, events: Sequence[QueueEvent] = ()) -> None:
        drained = {spec.name: [step.name for step in plan.working if step.queue == spec.name] for spec in plan.queues}
        self._queues = {spec.name: TaskQueue(spec, run, ledger, drained[spec.name]) for spec in plan.queues}
        for name, queue in self._queues.items():
            queue.restore([event for event in events if event.queue == name])

    def find(self, name: str) -> TaskQueue:
        """Return the queue of that name."""
        if name not in self._queues:
            raise UnknownName("queue", name, self._queues)
        return self._queues[name]

    async def seed(self) -> None:
        """Add the tasks of the file to each, unless they are there already."""
        for queue in self._queues.values():
            await queue.seed()

    async def add(self, queue: str, tasks: Sequence[QueuedTask], by: str, session: str) -> list[AddedTask]:
        """Add *tasks* of an agent to *queue*."""
        if queue not in self._queues:
            raise CallRefused(f"this run has no queue {queue!r:.60}")
        return await self._queues[queue].add(tasks, by, session)

    @contextlib.contextmanager
    def hold_producer(self, worker: WorkerSpec) -> Iterator[None]:
        """Keep a queue open that the agent of *worker* may add to, while the block runs."""
        grant = worker.task.talk
        queue = self._queues.get(grant.queue) if grant is not None else None
        with contextlib.nullcontext() if queue is None else queue.hold_producer():
            yield


async def open_queues(plan: Plan, runner: WorkerRunner) -> TaskQueues:
    """Open the queues of a run for its steps and its agents: with what was recorded of them, or the file's tasks."""
    context = runner.context
    queues = TaskQueues(plan, context.run, context.ledger, runner.history.queued)
    await queues.seed()  # before an agent can fill them
    runner.while_at_work = queues.hold_producer
    if context.talk is not None:
        context.talk.queues = queues
    return queues


async def drain_queue(
    runner: WorkerRunner, queue: TaskQueue, template: WorkerTemplate, most: int
) -> tuple[WorkerResult, ...]:
    """Work on the tasks of *queue*, at most *most* at once, until it is dry; return the results in order of arrival."""
    step = template.step
    is_strict = Rule.on_failure(step.on_failure).pattern == "gather"
    workers: dict[int, WorkerSpec] = {}

    async def work() -> None:
        while not runner.is_stopped and (entry := await queue.take(step.name)) is not None:
            try:
                worker = workers[entry.number] = make_worker(template, queue, entry)
                result = await runner.run(worker)
            finally:
                queue.finish()
            if is_strict and not result.status.is_good:
                raise Refused(result)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(most):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        if not isinstance(error := first_error(errors), Refused):
            raise error from None
    return tuple(runner.result(workers[number]) for number in sorted(workers))


def make_worker(template: WorkerTemplate, queue: TaskQueue, entry: Entry) -> WorkerSpec:
    """Make the worker of one task: its index is the task's number."""
    values = {"task": entry.task.text, "item": entry.task.text}
    return template.make(entry.number, max(2, queue.spec.most), values, item=entry.label)
