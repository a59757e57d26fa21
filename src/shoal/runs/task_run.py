"""The open run of a program: tasks come in over time, and each becomes a worker."""

import asyncio
import contextlib
import importlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal import __version__
from shoal.adapters.client import this_host
from shoal.errors import BadInput
from shoal.executors.kind import Executor
from shoal.executors.remote import open_executor
from shoal.git.refs import assert_unblocked, list_refs, pin
from shoal.git.repository import resolve
from shoal.model.budget import SpendingLimit
from shoal.model.conflict_rule import Merging
from shoal.model.events import RunEnded, RunPlanned, StepEnded, StepStarted
from shoal.model.masking import Mask
from shoal.model.merge import Strategy
from shoal.model.plan import Plan, Step
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import RunReport, WorkerResult
from shoal.model.setup import ToolFolder
from shoal.model.status import Status, share_status, single_status
from shoal.model.task import AgentLike, Task, TaskLike
from shoal.patterns.limiter import Limiter, use_limiter
from shoal.proc.spawn import raise_file_limit
from shoal.runs.auto_merge import auto_merge
from shoal.runs.context import home_of, open_run
from shoal.runs.control import RunControl, hold_control
from shoal.runs.overlaps import watch_overlaps
from shoal.runs.preflight import adapters_for, assert_holdable, assert_installed, secret_values
from shoal.runs.request import RunRequest, Settings
from shoal.runs.resume import record_resumed, resume_program
from shoal.runs.run import record_start
from shoal.sessions.command_session import OpenSession, hold_session, make_held_worker
from shoal.sessions.context import RunContext
from shoal.sessions.worker import WorkerSpec
from shoal.steps.admission import Admission, admitting
from shoal.steps.attempts import WorkerKey, WorkerRunner
from shoal.steps.dag import Contribution, DagRunner, Node, NodeInputs, Unstacked, explain_skip
from shoal.steps.gate import open_request_door
from shoal.steps.history import History
from shoal.steps.resolve_task import (
    AgentDirectory,
    Budgets,
    TaskDefaults,
    add_need_results,
    assert_order,
    label_of,
    name_tasks,
    resolve_assignment,
    resolve_task,
)
from shoal.store.fold import fold, report
from shoal.store.ledger import Listener
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events


class TaskRun:
    """The sessions of one coordinator's run."""

    def __init__(
        self,
        context: RunContext,
        settings: Settings,
        limiter: Limiter,
        admission: Admission,
        directory: AgentDirectory,
        defaults: TaskDefaults,
        history: History,
        executor: Executor | None = None,
    ) -> None:
        self.settings = settings
        self.runner = WorkerRunner(context, limiter, admission, history, executor)
        self._directory = directory
        self._defaults = defaults
        self._secrets: list[Mapping[str, str]] = []
        self._workers: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._calls = itertools.count(1)
        self._ended = self._good = 0
        self.control: RunControl | None = None
        self._taken: dict[str, str] | None = None

    def warm(self) -> None:
        """Import what resolving a task needs, so that the first agent does not wait for it."""
        if any(isinstance(agent, Mapping) for agent in (self.settings.agent, *self.settings.agents.values())):
            importlib.import_module("shoal.pipeline.plan")

    async def plan_graph(self, tasks: Sequence[Task], budget: SpendingLimit | None = None) -> list[WorkerSpec]:
        """Make workers of tasks that may depend on each other, with a common *budget*; raise `BadInput` for a cycle."""
        assert_order(known := self._name_tasks(tasks))
        return await self._plan_workers(known, tasks, {} if budget is None else {f"call:{next(self._calls)}": budget})

    async def plan_list(self, tasks: Sequence[Task]) -> list[WorkerSpec]:
        """Make workers of tasks without dependencies."""
        for task in tasks:
            if task.deps:
                raise BadInput(f"task {task.name or task.prompt!r:.40} has `deps`, which only `run_agents` supports")
        return await self._plan_workers(self._name_tasks(tasks), tasks, {})

    async def run_task(self, task: TaskLike) -> WorkerResult:
        """Run a single task."""
        (worker,) = await self.plan_list([Task.of(task)])
        try:
            return await self.runner.run(worker)
        finally:
            await self.finish_steps([worker])
            self.runner.forget(WorkerKey(worker.step, worker.index))  # a stream may be endless

    async def run_task_by(self, agent: AgentLike, task: TaskLike) -> WorkerResult:
        """Run a single task with *agent*."""
        return await self.run_task(replace(Task.of(task), agent=agent))

    @contextlib.asynccontextmanager
    async def held(self, step: str) -> AsyncIterator[OpenSession]:
        """Open a session for commands, named after *step*."""
        context = self.runner.context
        index = self._index(step)
        if index == 0:
            await context.ledger.append(StepStarted(run=context.run, step=step, workers=1, on_failure="best_effort"))
        async with hold_session(context, make_held_worker(step, index, self.settings.limits)) as session:
            yield session

    async def finish_steps(self, workers: Sequence[WorkerSpec]) -> list[WorkerResult]:
        """Record how the steps of *workers* ended, and return their results."""
        results = [self.runner.result(worker) for worker in workers]
        self._ended += len(results)
        self._good += sum(result.status.is_good for result in results)
        run = self.runner.context.run
        pairs = zip(workers, results, strict=True)
        marks = [StepEnded(run=run, step=worker.step, status=single_status(result.status)) for worker, result in pairs]
        await self.runner.context.ledger.append(*marks)
        self.runner.retire(workers)
        return results

    def report(self) -> RunReport:
        """Report the results of the run so far."""
        context = self.runner.context
        return report(fold(read_events(context.paths, context.run)).runs[context.run])

    async def resolver(self, agent: AgentLike) -> ResolvedTask:
        """Resolve the agent that resolves conflicts; refuse one that this host does not have."""
        context = self.runner.context
        made = resolve_assignment(
            Task(prompt="resolve a conflict", agent=agent, name="resolve"), self._directory, self._defaults
        )
        plan = self.settings.plan(reviewers={"resolver": made}, upstreams=context.upstreams)
        adapters_for(plan, this_host(), context.environ)
        await assert_installed(plan, this_host(), context.environ)
        await assert_holdable(context, plan)
        self._know_secrets(plan)
        return made

    def mask(self, text: str) -> str:
        """Mask the secrets known so far in *text*."""
        return self.runner.context.mask.text(text)

    @property
    def status(self) -> Status:
        """Return the status that the run has if it ends now."""
        return share_status(self._good, self._ended)

    def _name_tasks(self, tasks: Sequence[Task]) -> list[Task]:
        return name_tasks(tasks, (f"task-{number}" for number in self._numbers))

    async def _plan_workers(self, tasks: Sequence[Task], asked: Sequence[Task], budgets: Budgets) -> list[WorkerSpec]:
        """Resolve each task, as *asked* and with a name, refuse those that cannot start, and record the steps."""
        context = self.runner.context
        roles = [resolve_task(task, self._directory, self._defaults, budgets) for task in tasks]
        steps = [
            Step(name=str(task.name), task=role.task, artifacts=role.artifacts, contracts=role.contracts)
            for task, role in zip(tasks, roles, strict=True)
        ]
        reviewers = {name: reviewer for role in roles for name, reviewer in role.reviewers.items()}
        plan = self.settings.plan(steps=tuple(steps), reviewers=reviewers, upstreams=context.upstreams)
        adapters = adapters_for(plan, this_host(), context.environ)
        await assert_installed(plan, this_host(), context.environ)
        await self._assert_unblocked(step.name for step in steps)
        await assert_holdable(context, plan)
        bases = [await self._base(task) for task in tasks]
        self._know_secrets(plan)
        workers = [
            WorkerSpec(
                step=step.name,
                index=self._index(step.name),
                count=1,
                task=step.task,
                adapter=adapters[step.name],
                base=base,
                trusts_base=not task.deps and not isinstance(task.base, WorkerResult),
                needs=tuple(task.deps),
                wish=task,
                function=self._in_thread(task),
                artifacts=step.artifacts,
                contracts=step.contracts,
                reviewers={name: reviewers[name] for name in step.reviewers},
                label=label_of(wish, self.mask),
            )
            for step, task, wish, base in zip(steps, tasks, asked, bases, strict=True)
        ]
        started = (
            StepStarted(run=context.run, step=worker.step, workers=1, on_failure="best_effort") for worker in workers
        )
        await context.ledger.append(*started)
        return workers

    async def _assert_unblocked(self, names: Iterable[str]) -> None:
        """Refuse names that collide with the initial branches: listing branches for each task would cost ever more."""
        repository = self.runner.context.repository
        if self._taken is None:
            self._taken = await list_refs(repository, "refs/heads/agent")
        assert_unblocked(repository, names, self._taken)

    async def _base(self, task: Task) -> str | None:
        """Find the commit to build on, and pin it: the task may wait long for a slot, and git gc may run meanwhile."""
        context = self.runner.context
        if isinstance(task.base, WorkerResult):
            commit = task.base.commit or task.base.base  # an agent that changed nothing passes on its base
        else:
            commit = None if task.base is None else await resolve(context.repository, task.base)
        if commit not in (None, context.base.commit):
            await pin(context.repository, context.run, commit)
        return commit

    def _in_thread(self, task: Task) -> Callable[..., object] | None:
        wanted = task.agent if task.agent is not None else self.settings.agent
        is_function = callable(wanted) and self.settings.execution_mode == "thread"
        return wanted if is_function and callable(wanted) else None

    def _index(self, step: str) -> int:
        self._workers[step] += 1
        return self._workers[step] - 1

    def _know_secrets(self, plan: Plan) -> None:
        """Mask values from the host's environment in all sessions from now on."""
        every = (secret_values(task, this_host(), self.runner.context.environ) for task in plan.assignments)
        new = [values for those in every for values in those if values]
        if new:
            self._secrets += new
            self.runner.use_mask(Mask.of(*self._secrets))


@contextlib.asynccontextmanager
async def open_task_run(
    folder: Path,
    settings: Settings,
    listen: Listener | None = None,
    limiter: Limiter | None = None,
) -> AsyncIterator[TaskRun]:
    """Open a run for tasks that come in over time; patterns inside it share its limit."""
    began = time.monotonic()
    directory = AgentDirectory(folder, settings.environ, settings.agent, settings.agents, personas=settings.personas)
    defaults, toolchains = _surroundings(directory, settings)
    most = min(settings.max_concurrent, raise_file_limit())
    scarce = f"{most} agents at a time: more would need a higher limit of open files"
    few = () if most == settings.max_concurrent else (scarce,)
    seen = tuple(f"all agents may run programs in {folder.path}" for folder in toolchains)
    plan = settings.plan(toolchains=toolchains, upstreams=directory.upstreams, notes=(*few, *seen))
    request = replace(settings.request(folder), on_event=listen)
    if settings.resume is not None:
        paths = StatePaths.of(await home_of(request))
        request = await resume_program(request, paths, settings.resume, settings.rewind)
    async with open_run(request, plan) as opened, contextlib.AsyncExitStack() as held:
        context = opened.context
        door = held.enter_context(open_request_door(context))
        history = await _begin(context, plan, request, settings)
        executor = await held.enter_async_context(open_executor(context, plan))
        if executor is not None:
            executor.fleet.announce()
        admission = Admission(context.paths.root, objects=context.repository.git)
        limit = limiter or (admitting(context, admission, most) if executor is None else Limiter(most))
        defaults = replace(defaults, private=context.private)
        task_run = TaskRun(context, settings, limit, admission, directory, defaults, history, executor)
        task_run.warm()
        control = task_run.control = RunControl(runner=task_run.runner, door=door, stop_run=task_run.runner.stop_all)
        status: Status | None = Status.FAILED  # if the run is left by an error
        try:
            async with watch_overlaps(context, mask=task_run.mask), hold_control(control):
                with use_limiter(limit):
                    yield task_run
            status = None
            if settings.auto_merge:
                await auto_merge(task_run.runner, Merging(strategy=Strategy.AUTO), asyncio.Event())
        except asyncio.CancelledError:
            status = Status.CANCELLED
            raise
        finally:
            took = round(time.monotonic() - began, 3)
            await context.ledger.append(
                RunEnded(run=context.run, status=status or task_run.status, duration_seconds=took)
            )


async def _begin(context: RunContext, plan: Plan, request: RunRequest, settings: Settings) -> History:
    if request.resume is not None:
        return await record_resumed(context, request.resume)
    why = f"a program started it: start that again with `AgentCoordinator(resume={context.run!r})`"
    planned = RunPlanned(run=context.run, plan="", unrecorded=why, options={}, version=__version__)
    await record_start(context, plan, planned, limits=settings.limits)
    return History()


def _surroundings(directory: AgentDirectory, settings: Settings) -> tuple[TaskDefaults, tuple[ToolFolder, ...]]:
    """Return the defaults of tasks, and the folders of programs that all agents see."""
    defaults = TaskDefaults(limits=settings.limits, network=settings.network)
    is_said = settings.setup is not None or settings.toolchains is not None
    if not is_said and not directory.has_file:
        return defaults, ()
    of_file, folders = directory.project.surroundings(None, settings.toolchains)
    setup = directory.project.surroundings(settings.setup, None)[0] if settings.setup is not None else None
    return replace(defaults, setup=setup, file_setup=of_file), folders


Work = Callable[[WorkerSpec], Awaitable[object]]
OnEnd = Callable[[WorkerResult], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _TaskEnd:
    result: WorkerResult
    base: str | None
    """The commit that it started from; `None` is the run's base."""

    @property
    def commit(self) -> str | None:
        """What it passes on: a task that changed nothing passes on its own base."""
        return self.result.commit or self.base


async def run_task_graph(
    runner: WorkerRunner, workers: Sequence[WorkerSpec], work: Work, on_end: OnEnd | None = None
) -> None:
    """Run *work* for each of *workers*; one with a failed dependency is skipped, and its result says so."""
    tasks = _TaskWork(runner, {worker.step: worker for worker in workers}, work, on_end)
    nodes = [
        Node(name=worker.step, needs=worker.needs, base=worker.base, is_stacked=worker.is_stacked) for worker in workers
    ]
    await DagRunner(runner.context, tasks).run(nodes)


@dataclass(frozen=True, slots=True)
class _TaskWork:
    """The tasks of a program, for the scheduler."""

    runner: WorkerRunner
    workers: Mapping[str, WorkerSpec]
    work: Work
    on_end: OnEnd | None

    def is_met(self, ended: _TaskEnd) -> bool:
        return ended.result.status.is_good

    def contribution(self, name: str, ended: _TaskEnd) -> Contribution:
        return Contribution(name, ended.commit)

    async def skip(self, node: Node, failed: Sequence[str]) -> _TaskEnd:
        return await self._note(node, Status.SKIPPED, explain_skip(failed))

    async def unstack(self, node: Node, error: Unstacked, turn: NodeInputs[_TaskEnd]) -> _TaskEnd:
        return await self._note(node, Status.FAILED, str(error))

    async def perform(self, node: Node, turn: NodeInputs[_TaskEnd]) -> _TaskEnd:
        worker = self.workers[node.name]
        task = worker.task
        if worker.wish is not None:
            task = add_need_results(task, worker.wish, {need: ended.result for need, ended in turn.needs.items()})
        await self.work(replace(worker, base=turn.base, task=task))
        return await self._end(node, turn.base)

    async def _note(self, node: Node, status: Status, why: str) -> _TaskEnd:
        worker = self.workers[node.name]
        self.runner.note(worker, worker.result_without_start(status, why))
        return await self._end(node, None)

    async def _end(self, node: Node, base: str | None) -> _TaskEnd:
        ended = _TaskEnd(self.runner.result(self.workers[node.name]), base)
        if self.on_end is not None:
            await self.on_end(ended.result)
        return ended
