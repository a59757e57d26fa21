"""The patterns of a coordinator: how tasks become sessions that wait for, race or follow each other."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from shoal.errors import AllFailed, BadInput, QuorumMissed, Refused
from shoal.model.budget import SpendingLimit
from shoal.model.results import AgentFailed, WorkerResult
from shoal.model.retry import Retry
from shoal.model.status import Status
from shoal.model.task import AgentLike, Task, TaskLike
from shoal.patterns import (
    AgentPool,
    Call,
    Cancelled,
    Err,
    Limiter,
    Ok,
    Outcome,
    Progress,
    balance,
    gather,
    quorum,
    race,
    settled,
    stream,
)
from shoal.patterns.balance import Strategy
from shoal.patterns.outcome import ProgressMeter
from shoal.patterns.source import Source
from shoal.runs.merge_results import ProgramMerge
from shoal.runs.task_run import TaskRun, run_task_graph
from shoal.sessions.command_session import OpenSession
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import is_good
from shoal.steps.workers import limiter_for

Stage = Sequence[TaskLike] | Callable[[list[WorkerResult]], Sequence[TaskLike]]
OnProgress: TypeAlias = Callable[[Progress], Awaitable[None] | None] | None
BudgetLike: TypeAlias = SpendingLimit | Mapping[str, object] | float | str | None
RetryLike: TypeAlias = Retry | int | Mapping[str, object] | None


class RunPatterns(ProgramMerge):
    """Every pattern takes *progress*, called with a `Progress` as each task ends, and *retry* for tasks without one."""

    async def run_agents(
        self,
        tasks: Sequence[TaskLike],
        *,
        deadline: float | None = None,
        progress: OnProgress = None,
        retry: RetryLike = None,
        budget: BudgetLike = None,
    ) -> list[WorkerResult]:
        """Run *tasks*, each as soon as its `deps` have succeeded; all settle, and results are in input order.

        A task whose need did not succeed is `skipped`. Each starts from the merged work of its needs. After *deadline*
        seconds, sessions that still run are ended and their work kept; the results say `cancelled`. *budget* is what
        all of them together may spend on models.
        """
        limit = None if budget is None else SpendingLimit.read(budget)
        async with self._open() as task_run:
            workers = await task_run.plan_graph(_list_tasks(tasks, retry), limit)
            meter = ProgressMeter(progress, len(workers))
            try:
                async with asyncio.timeout(deadline) as clock:
                    await run_task_graph(
                        task_run.runner, workers, task_run.runner.run, lambda result: meter.count(_outcome(result))
                    )
            except TimeoutError:
                if not clock.expired():
                    raise
            finally:
                results = await task_run.finish_steps(workers)
                meter.close()
            return results

    async def settled(
        self, tasks: Sequence[TaskLike], *, progress: OnProgress = None, retry: RetryLike = None
    ) -> list[WorkerResult]:
        """Run all until they end, whatever their results, and return the results in input order."""
        async with self._plan_workers(tasks, retry) as (task_run, workers):
            return await _all(task_run, workers, progress)

    async def gather(
        self, tasks: Sequence[TaskLike], *, progress: OnProgress = None, retry: RetryLike = None
    ) -> list[WorkerResult]:
        """Run all; the first failure ends the rest, whose work is kept, and raises `AgentFailed`."""
        async with self._plan_workers(tasks, retry) as (task_run, workers), _failing():
            return await gather(
                _calls(task_run, workers), accept=is_good, limiter=limiter_for(workers), progress=progress
            )

    async def race(
        self, tasks: Sequence[TaskLike], *, progress: OnProgress = None, retry: RetryLike = None
    ) -> WorkerResult:
        """Return the first success; the rest is ended and its work kept. Raises `AllFailed` with every cause."""
        async with self._plan_workers(tasks, retry) as (task_run, workers), _failing():
            return await race(
                _calls(task_run, _find_decisive(task_run, workers, 1)),
                accept=is_good,
                limiter=limiter_for(workers),
                progress=progress,
            )

    async def quorum(
        self, tasks: Sequence[TaskLike], n: int, *, progress: OnProgress = None, retry: RetryLike = None
    ) -> list[WorkerResult]:
        """Return the first *n* successes, in input order, and end the rest; raises `QuorumMissed`."""
        if not 1 <= n <= len(tasks):
            raise BadInput(f"a quorum of {n} needs more than {len(tasks)} tasks")
        async with self._plan_workers(tasks, retry) as (task_run, workers), _failing():
            return await quorum(
                _calls(task_run, _find_decisive(task_run, workers, n)),
                n,
                accept=is_good,
                limiter=limiter_for(workers),
                progress=progress,
            )

    async def stages(
        self, *stages: Stage, progress: OnProgress = None, retry: RetryLike = None
    ) -> list[list[WorkerResult]]:
        """Run stage after stage, each with the results of the one before as inputs; stop after a stage with a failure.

        A stage is a list of tasks, or a function that makes one from the results of the stage before. *progress* counts
        each stage separately.
        """
        done: list[list[WorkerResult]] = []
        async with self._open() as task_run:
            for stage in stages:
                before = done[-1] if done else []
                if not all(map(is_good, before)):
                    break
                tasks = stage(before) if callable(stage) else [_with_results(task, before) for task in stage]
                async with _recorded(task_run, _list_tasks(tasks, retry)) as workers:
                    done.append(await _all(task_run, workers, progress))
        return done

    async def stream(
        self,
        tasks: Source[TaskLike],
        *,
        ordered: bool = False,
        limit: int | None = None,
        progress: OnProgress = None,
        retry: RetryLike = None,
    ) -> AsyncGenerator[WorkerResult, None]:
        """Yield results as they come, from a source that may be endless: it is read only as agents become free.

        To stop early, iterate inside `contextlib.aclosing`, or call `aclose`.
        """
        async with self._open() as task_run:
            window = Limiter(limit or self.max_concurrent)  # the sessions take the slots themselves

            async def perform(task: TaskLike) -> WorkerResult:
                return await task_run.run_task(_with_retry(Task.of(task), retry))

            outcomes = stream(perform, tasks, ordered=ordered, limiter=window, accept=is_good, progress=progress)
            async with contextlib.aclosing(outcomes):
                async for outcome in outcomes:
                    yield _value(outcome)

    async def balance(
        self,
        tasks: Sequence[TaskLike],
        agents: Mapping[str, AgentLike] | Sequence[AgentLike],
        *,
        weights: Mapping[str, float] | Sequence[float] | None = None,
        strategy: Strategy = "least_loaded",
        progress: OnProgress = None,
        retry: RetryLike = None,
    ) -> list[WorkerResult]:
        """Give each task to the least loaded of *agents*, by their weights, or to each in turn.

        *agents* is a mapping, or a list that may contain the same agent several times.
        """
        async with self._open() as task_run:

            def hand(agent: AgentLike) -> Callable[[TaskLike], Awaitable[WorkerResult]]:
                return lambda task: task_run.run_task_by(agent, _with_retry(Task.of(task), retry))

            if isinstance(agents, str | bytes):
                raise BadInput("`agents` of `balance` is a mapping or a list; put a single agent into brackets")
            hands = (
                {name: hand(agent) for name, agent in agents.items()}
                if isinstance(agents, Mapping)
                else [hand(agent) for agent in agents]
            )
            window = Limiter(self.max_concurrent)
            outcomes = await balance(
                tasks, hands, weights=weights, strategy=strategy, limiter=window, accept=is_good, progress=progress
            )
            return [_value(outcome) for outcome in outcomes]

    async def spawn_agent(self, agent: AgentLike, task: TaskLike | None = None, /, **more: object) -> WorkerResult:
        """Run one task with *agent*, which is an agent or a persona (seed 004), as a session of its own.

        Keys of a mapping and of *more* that are not fields of a task become its `params`.
        """
        fields = task if isinstance(task, Mapping) else {} if task is None else Task.of(task).as_fields()
        given = Task.free({**fields, **more})
        async with self._open() as task_run:
            return await task_run.run_task_by(agent, given)

    def pool(self, size: int | None = None, *, max_uses: int | None = None) -> AgentPool[OpenSession]:
        """Hold warm sessions, each with a workspace of its own; the work of each is kept when it is released.

        Use it with `async with`, or call `cleanup` at the end. A session requested by name is named after it.
        """
        limiter = self._limiter if self._task_run is None else self._task_run.runner.limiter
        return AgentPool(self._held, size=size or self.max_concurrent, max_uses=max_uses, limiter=limiter)

    @contextlib.asynccontextmanager
    async def _held(self, name: str | None = None) -> AsyncIterator[OpenSession]:
        async with self._open() as task_run, task_run.held(name or "pool") as session:
            yield session

    async def run_command(
        self, command: str | Sequence[str], *, base: str | WorkerResult | None = None, timeout: float | None = None
    ) -> WorkerResult:
        """Run a plain command in the sandbox, on *base* or on the work of an earlier result; its exit code decides.

        Its workspace is set up like those of agents: by `setup`, by `shoal.yaml`, or by the repository's own set-up.
        """
        async with self._open() as task_run:
            return await task_run.run_task(Task.command(command, base=base, timeout=timeout))

    @contextlib.asynccontextmanager
    async def _plan_workers(
        self, tasks: Sequence[TaskLike], retry: RetryLike
    ) -> AsyncIterator[tuple[TaskRun, list[WorkerSpec]]]:
        async with self._open() as task_run, _recorded(task_run, _list_tasks(tasks, retry)) as workers:
            yield task_run, workers


@contextlib.asynccontextmanager
async def _recorded(task_run: TaskRun, tasks: Sequence[Task]) -> AsyncIterator[list[WorkerSpec]]:
    """Make workers for *tasks*, and record how they ended, whatever happens."""
    workers = await task_run.plan_list(tasks)
    try:
        yield workers
    finally:
        await task_run.finish_steps(workers)


@contextlib.asynccontextmanager
async def _failing() -> AsyncIterator[None]:
    """Translate a pattern's refused value into an agent that failed."""
    try:
        yield
    except Refused as refused:
        raise _failure(refused) from None
    except AllFailed as lost:
        raise AllFailed([_failure(error) for error in lost.errors]) from None
    except QuorumMissed as missed:
        raise QuorumMissed(missed.wanted, missed.succeeded, [_failure(error) for error in missed.errors]) from None


def _failure(error: Exception) -> Exception:
    value = error.value if isinstance(error, Refused) else None
    return AgentFailed(value) if isinstance(value, WorkerResult) else error


async def _all(task_run: TaskRun, workers: Sequence[WorkerSpec], progress: OnProgress) -> list[WorkerResult]:
    outcomes = await settled(_calls(task_run, workers), accept=is_good, limiter=limiter_for(workers), progress=progress)
    for outcome in outcomes:
        if isinstance(outcome, Err) and not isinstance(outcome.error, Refused):
            raise outcome.error
    return [task_run.runner.result(worker) for worker in workers]


def _calls(task_run: TaskRun, workers: Sequence[WorkerSpec]) -> list[Call[WorkerResult]]:
    return [partial(task_run.runner.run, worker) for worker in workers]


def _find_decisive(task_run: TaskRun, workers: list[WorkerSpec], needed: int) -> list[WorkerSpec]:
    """Leave out workers that nobody waits for, if enough had succeeded before the run was resumed."""
    ended = [worker for worker in workers if task_run.runner.has_succeeded(worker)]
    return ended if len(ended) >= needed else workers


def _value(outcome: Outcome[WorkerResult]) -> WorkerResult:
    match outcome:
        case Ok(value):
            return value
        case Err(Refused(value=WorkerResult() as value)):
            return value
        case Err(error):
            raise error
        case _:
            raise asyncio.CancelledError


def _outcome(result: WorkerResult) -> Outcome[WorkerResult]:
    """Return *result* as an outcome for patterns."""
    if result.status.is_good:
        return Ok(result)
    return Cancelled() if result.status is Status.CANCELLED else Err(AgentFailed(result))


def _list_tasks(tasks: Sequence[TaskLike], retry: RetryLike = None) -> list[Task]:
    if isinstance(tasks, str | bytes | Mapping):
        raise BadInput("tasks must be a list; put a single task into brackets")
    return [_with_retry(Task.of(task), retry) for task in tasks]


def _with_retry(task: Task, retry: RetryLike) -> Task:
    return task if retry is None or task.retry is not None else replace(task, retry=retry)


def _with_results(task: TaskLike, before: Sequence[WorkerResult]) -> Task:
    return Task.of(task).with_inputs(before)
