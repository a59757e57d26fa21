"""`AgentCoordinator`: run many sandboxed agents from a program, in any pattern, under one limit."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from shoal.errors import BadInput
from shoal.model.merge import Conflict
from shoal.model.results import RunReport, WorkerResult
from shoal.model.task import TaskLike
from shoal.runs.patterns import BudgetLike, RunPatterns, Stage
from shoal.runs.program_run import ActiveSession

__all__ = ["ActiveSession", "AgentCoordinator", "Stage", "SyncCoordinator"]

P = ParamSpec("P")
R = TypeVar("R")


class AgentCoordinator(RunPatterns):
    """Runs tasks as sessions of one run, at most *max_concurrent* at once (seeds 002 and 004).

    Use it with `async with`; otherwise each call opens a run of its own. An agent's failure is a result, whose status
    says so; only mistakes of the user and a broken machine raise. *config* is seed 002's dictionary. In a program
    without an event loop, `with` offers the same calls without `await`, and so does `sync`.
    """

    @property
    def sync(self) -> "SyncCoordinator":
        """The same calls for synchronous code, which has no event loop."""
        return SyncCoordinator(self)

    def run_agents_sync(
        self, tasks: Sequence[TaskLike], *, deadline: float | None = None, budget: BudgetLike = None
    ) -> list[WorkerResult]:
        """Do what `run_agents` does, for synchronous code."""
        return self.sync.run_agents(tasks, deadline=deadline, budget=budget)

    def __enter__(self) -> "SyncCoordinator":
        """Begin the run for synchronous code; inside a running loop, use `async with`."""
        self._blocking = self.sync
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run."""
        self._blocking.__exit__(kind, error, trace)


class _Blocking(Generic[P, R]):
    """A coordinator's call that blocks until its result is there."""

    def __init__(self, call: Callable[Concatenate[AgentCoordinator, P], Coroutine[Any, Any, R]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    def __get__(self, owner: "SyncCoordinator", kind: type["SyncCoordinator"] | None = None) -> Callable[P, R]:
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return owner.wait_for(lambda: self._call(owner.coordinator, *args, **kwargs))

        return call


class SyncCoordinator:
    """A coordinator for synchronous code: its calls return their results. Between two calls nothing of it runs."""

    run_agents = _Blocking(AgentCoordinator.run_agents)
    settled = _Blocking(AgentCoordinator.settled)
    gather = _Blocking(AgentCoordinator.gather)
    race = _Blocking(AgentCoordinator.race)
    quorum = _Blocking(AgentCoordinator.quorum)
    stages = _Blocking(AgentCoordinator.stages)
    balance = _Blocking(AgentCoordinator.balance)
    spawn_agent = _Blocking(AgentCoordinator.spawn_agent)
    run_command = _Blocking(AgentCoordinator.run_command)
    merge = _Blocking(AgentCoordinator.merge)
    merge_agent_results = _Blocking(AgentCoordinator.merge_agent_results)
    merge_agent_work = _Blocking(AgentCoordinator.merge_agent_work)
    deliver = _Blocking(AgentCoordinator.deliver)

    def __init__(self, coordinator: AgentCoordinator) -> None:
        self.coordinator = coordinator
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        """Begin the run."""
        _refuse_loop()
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self.coordinator.__aenter__())
        except BaseException:
            self._runner.close()
            self._runner = None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run; the work of each session is kept."""
        runner, self._runner = self._runner, None
        if runner is not None:
            with runner:
                runner.run(self.coordinator.__aexit__(kind, error, trace))

    def wait_for(self, begin: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a call until it ends, in the loop of the open run or in one of its own."""
        _refuse_loop()
        return asyncio.run(begin()) if self._runner is None else self._runner.run(begin())

    def resolve_conflicts(self, conflicts: Sequence[Conflict | Mapping[str, object]]) -> list[str]:
        """Say what a person should do about each of *conflicts*; nothing is changed."""
        return self.coordinator.resolve_conflicts(conflicts)

    @property
    def max_concurrent(self) -> int:
        """How many agents run at once."""
        return self.coordinator.max_concurrent

    @property
    def active_sessions(self) -> dict[str, ActiveSession]:
        """The running sessions by name."""
        return self.coordinator.active_sessions

    @property
    def report(self) -> RunReport:
        """The results of the run so far."""
        return self.coordinator.report


def _refuse_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BadInput("a loop is running here: use `async with`, and `await` the calls of the coordinator itself")
