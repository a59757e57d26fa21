"""`AgentCoordinator`: many sandboxed agents for a program, by every pattern, under one limit."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.engine.chart import charted
from shoal.engine.crew import Crew, crewed
from shoal.engine.dispatch import is_good
from shoal.engine.held import OpenSession
from shoal.engine.job import Job
from shoal.engine.merge.advice import advice
from shoal.engine.merge.bring_back import equipped
from shoal.engine.merge.desk import MergeAsk, Resolving, conflict_rule
from shoal.engine.merge.handing import desk_of, handed, session_name
from shoal.engine.merge.merge import merge
from shoal.engine.run import Listener
from shoal.engine.settings import Settings
from shoal.engine.together import room_for, together
from shoal.errors import AllFailed, BadInput, QuorumMissed, Refused, UnknownName
from shoal.model.conflict_rule import verification
from shoal.model.merge import Conflict, MergeReport, MergeResult
from shoal.model.merge import Strategy as MergeStrategy
from shoal.model.results import AgentFailed, RunReport, WorkerResult
from shoal.model.rule import Rule
from shoal.model.task import AgentLike, Task, TaskLike
from shoal.patterns import AgentPool, Call, Err, Limiter, Ok, Outcome, balance, gather, quorum, race, stream
from shoal.patterns.balance import Strategy
from shoal.patterns.source import Source

Stage = Sequence[TaskLike] | Callable[[list[WorkerResult]], Sequence[TaskLike]]


@dataclass(frozen=True, slots=True)
class ActiveSession:
    """A session that runs now."""

    session: str
    task: str
    branch: str
    workspace: Path


class AgentCoordinator:
    """Seeds 002 and 004: tasks become sessions of one run, at most *max_concurrent* at once.

    Use it by `async with`; without, each call opens a run of its own. An agent's failure is a value: its status says
    so, and nothing is raised but the user's own mistakes and a broken machine. *config* is seed 002's dictionary.
    """

    def __init__(
        self,
        repo: Path | str = ".",
        max_concurrent: int | None = None,
        *,
        config: Mapping[str, object] | None = None,
        agent: AgentLike | None = None,
        agents: Mapping[str, AgentLike] | None = None,
        listen: Listener | None = None,
        limiter: Limiter | None = None,
        **settings: object,
    ) -> None:
        given = {**(config or {}), **settings}
        if max_concurrent is not None:
            given = {key: value for key, value in given.items() if key != "max_concurrent_agents"}
            given["max_concurrent"] = max_concurrent
        if "limits" in given:
            given["resource_limits"] = given.pop("limits")
        self.settings = Settings(agent=agent, agents=agents or {}).under(given)
        self.repo = Path(repo)
        self._listen = listen
        self._limiter = limiter
        self._crew: Crew | None = None
        self._stack = contextlib.AsyncExitStack()
        self._users = 0
        self._opening = asyncio.Lock()  # guards the opening of the run, which all calls of a time share
        self._is_entered = False

    @property
    def max_concurrent(self) -> int:
        """How many agents run at once."""
        return self.settings.max_concurrent

    async def __aenter__(self) -> Self:
        """Begin the run: its wall, its base and its ledger are the same for all tasks."""
        if self._is_entered:
            raise BadInput("this coordinator is open already; make another one")
        self._is_entered = True
        try:
            await self._join()
        except BaseException:
            self._is_entered = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run, or leave that to the last call that still goes on; the work of each session is kept."""
        self._is_entered = False
        await self._leave(kind, error, trace)

    async def run_agents(self, tasks: Sequence[TaskLike], *, deadline: float | None = None) -> list[WorkerResult]:
        """Run *tasks*, each as soon as its `deps` have ended well; all settle, and results are in input order.

        A task whose need did not end well is `skipped`. It starts from the merged work of its needs. After *deadline*
        seconds what still runs is ended and its work kept; the results say `cancelled`.
        """
        async with self._open() as crew:
            jobs = await crew.charted(_listed(tasks))
            try:
                async with asyncio.timeout(deadline) as clock:
                    await charted(crew.dispatch, jobs, crew.dispatch.done)
            except TimeoutError:
                if not clock.expired():
                    raise
            finally:
                results = await crew.ended(jobs)
            return results

    def run_agents_sync(self, tasks: Sequence[TaskLike], *, deadline: float | None = None) -> list[WorkerResult]:
        """Do the same for plain scripts, which have no event loop."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise BadInput("a loop is running here: await `run_agents`")
        return asyncio.run(self.run_agents(tasks, deadline=deadline))

    async def settled(self, tasks: Sequence[TaskLike]) -> list[WorkerResult]:
        """Run all to their end, whatever becomes of them, and give the results in input order."""
        async with self._jobs(tasks) as (crew, jobs):
            return list(await together(crew.dispatch, jobs, Rule("settled")))

    async def gather(self, tasks: Sequence[TaskLike]) -> list[WorkerResult]:
        """Run all; the first that does not end well ends the rest, whose work is kept, and raises `AgentFailed`."""
        async with self._jobs(tasks) as (crew, jobs), _failing():
            return await gather(_calls(crew, jobs), accept=is_good, limiter=room_for(jobs))

    async def race(self, tasks: Sequence[TaskLike]) -> WorkerResult:
        """Give the first that ends well; the rest is ended and its work kept. Raises `AllFailed` with every cause."""
        async with self._jobs(tasks) as (crew, jobs), _failing():
            return await race(_calls(crew, jobs), accept=is_good, limiter=room_for(jobs))

    async def quorum(self, tasks: Sequence[TaskLike], n: int) -> list[WorkerResult]:
        """Give the first *n* that end well, in input order, and end the rest; raises `QuorumMissed`."""
        if not 1 <= n <= len(tasks):
            raise BadInput(f"a quorum of {n} cannot be had of {len(tasks)} tasks")
        async with self._jobs(tasks) as (crew, jobs), _failing():
            return await quorum(_calls(crew, jobs), n, accept=is_good, limiter=room_for(jobs))

    async def stages(self, *stages: Stage) -> list[list[WorkerResult]]:
        """Run stage after stage, each given the results before it as inputs; one with a failure is the last.

        A stage is a list of tasks, or a function that makes one of the results before it.
        """
        done: list[list[WorkerResult]] = []
        async with self._open() as crew:
            for stage in stages:
                before = done[-1] if done else []
                if not all(map(is_good, before)):
                    break
                tasks = stage(before) if callable(stage) else [_informed(task, before) for task in stage]
                async with _recorded(crew, tasks) as jobs:
                    done.append(list(await together(crew.dispatch, jobs, Rule("settled"))))
        return done

    async def stream(
        self, tasks: Source[TaskLike], *, ordered: bool = False, limit: int | None = None
    ) -> AsyncGenerator[WorkerResult, None]:
        """Give results as they come, of a source that may be endless: it is read only as agents become free.

        To leave early, iterate inside of `contextlib.aclosing`, or call `aclose`.
        """
        async with self._open() as crew:
            window = Limiter(limit or self.max_concurrent)  # the slots are taken by the sessions themselves
            outcomes = stream(crew.one, tasks, ordered=ordered, limiter=window)
            async with contextlib.aclosing(outcomes):
                async for outcome in outcomes:
                    yield _value(outcome)

    async def balance(
        self,
        tasks: Sequence[TaskLike],
        agents: Mapping[str, AgentLike],
        *,
        weights: Mapping[str, float] | None = None,
        strategy: Strategy = "least_loaded",
    ) -> list[WorkerResult]:
        """Give each task to the least loaded of *agents*, by their weights, or to each in turn."""
        async with self._open() as crew:
            hands = {name: partial(crew.by, agent) for name, agent in agents.items()}
            window = Limiter(self.max_concurrent)
            outcomes = await balance(tasks, hands, weights=weights, strategy=strategy, limiter=window)
            return [_value(outcome) for outcome in outcomes]

    @contextlib.asynccontextmanager
    async def pool(
        self, size: int | None = None, *, max_uses: int | None = None
    ) -> AsyncIterator[AgentPool[OpenSession]]:
        """Hold warm sessions, each with a workspace of its own; the work of each is kept when it is let go."""
        async with self._open() as crew:
            most = size or self.max_concurrent
            async with AgentPool(crew.held, size=most, max_uses=max_uses, limiter=crew.dispatch.limiter) as pool:
                yield pool

    async def run_command(
        self, command: str | Sequence[str], *, base: str | WorkerResult | None = None, timeout: float | None = None
    ) -> WorkerResult:
        """Run a plain command behind the wall, on *base* or on the work of an earlier result; its exit code decides."""
        async with self._open() as crew:
            return await crew.one(Task.command(command, base=base, timeout=timeout))

    async def merge(
        self,
        results: Sequence[WorkerResult | str | OpenSession] = (),
        strategy: str = "review",
        *,
        into: str | None = None,
        allow_executable_config: bool = False,
        verify: str | Sequence[str] | None = None,
        on_conflict: str = "report",
        resolver: AgentLike | None = None,
    ) -> MergeReport:
        """Bring the work of *results*, or of the whole run, together on its branch `shoal/<run>`.

        No branch of the user's is moved unless it is named as *into*. What conflicts stops nobody: see the report.
        The command *verify* is run behind the wall on the combined work: what makes it fail is put aside. What
        conflicts is resolved as *on_conflict* says, by the agent *resolver* with `agent`; `redo` does tasks of this
        run again.
        """
        how = Resolving(rule=conflict_rule(on_conflict, resolver))
        ask = MergeAsk(strategy=_strategy(strategy), into=into, allow_executable=allow_executable_config, resolving=how)
        if verify is None and not how.needs_boxes:
            return await self._merged(list(results), ask)
        if not results and not self._is_entered:
            raise BadInput("the run is over: say which results are to be merged, or merge inside of `async with`")
        async with self._open() as crew:
            if resolver is not None:
                ask = replace(ask, resolving=replace(how, resolver=await crew.resolver(resolver)))
            async with equipped(crew.dispatch, ask, None if verify is None else verification(verify)) as whole:
                return await self._merged(list(results), whole)

    async def merge_agent_results(
        self, sessions: Sequence[WorkerResult | str | OpenSession], strategy: str = "review"
    ) -> list[MergeResult]:
        """Merge *sessions* in their order (seed 002), and give what became of each."""
        done = await self._merged(list(sessions), MergeAsk(strategy=_strategy(strategy)), is_ordered=True)
        return list(done.results)

    async def merge_agent_work(self, session_id: str, strategy: str = "review") -> MergeResult:
        """Merge one session (seed 002); the result's fields are also to be had as `result["status"]`."""
        (result,) = await self.merge_agent_results([session_id], strategy)
        return result

    def resolve_conflicts(self, conflicts: Sequence[Conflict | Mapping[str, object]]) -> list[str]:
        """Say what a person is to do about each of *conflicts* (seed 002); nothing is changed."""
        return advice(conflicts)

    async def _merged(
        self, given: list[WorkerResult | str | OpenSession], ask: MergeAsk, *, is_ordered: bool = False
    ) -> MergeReport:
        # A run that was opened for this call alone is not the one that the sessions belong to.
        site = self._crew.dispatch.site if self._crew is not None and self._is_entered else None
        names = [session_name(one) for one in given]
        async with desk_of(self.repo, self.settings.environ, site, names) as desk:
            workers = handed(desk.paths, given) if given else None
            if not is_ordered or workers is None:
                return await merge(desk, ask, workers)
            order = tuple(one.session for one in workers)
            done = await merge(desk, replace(ask, sessions=order), workers)
            return replace(done, results=tuple(done[name] for name in order))

    @property
    def active_sessions(self) -> dict[str, ActiveSession]:
        """The sessions that run now, by their names."""
        if self._crew is None:
            return {}
        site = self._crew.dispatch.site
        return {
            name: ActiveSession(name, job.step, job.branch, site.paths.workspace(site.run, job.step, job.index))
            for name, job in self._crew.dispatch.active.items()
        }

    @property
    def report(self) -> RunReport:
        """What came of the run so far."""
        if self._crew is None:
            raise BadInput("the coordinator is not open; use it in an `async with` block")
        return self._crew.report()

    @contextlib.asynccontextmanager
    async def _jobs(self, tasks: Sequence[TaskLike]) -> AsyncIterator[tuple[Crew, list[Job]]]:
        async with self._open() as crew, _recorded(crew, tasks) as jobs:
            yield crew, jobs

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[Crew]:
        crew = await self._join()
        try:
            yield crew
        finally:
            await self._leave(*sys.exc_info())

    async def _join(self) -> Crew:
        """Use the run that is open, or begin one."""
        if self._users == 0:
            self._opening = asyncio.Lock()  # the one before may belong to a loop that is closed
        self._users += 1
        try:
            async with self._opening:
                if self._crew is None:
                    opening = crewed(self.repo, self.settings, self._listen, self._limiter)
                    self._crew = await self._stack.enter_async_context(opening)
                return self._crew
        except BaseException:
            self._users -= 1
            raise

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run when nobody uses it any more."""
        self._users -= 1
        if self._users == 0:
            stack, self._stack, self._crew = self._stack, contextlib.AsyncExitStack(), None
            await stack.__aexit__(kind, error, trace)


@contextlib.asynccontextmanager
async def _recorded(crew: Crew, tasks: Sequence[TaskLike]) -> AsyncIterator[list[Job]]:
    """Make jobs of *tasks*, and record how they ended, however that was."""
    jobs = await crew.listed(_listed(tasks))
    try:
        yield jobs
    finally:
        await crew.ended(jobs)


@contextlib.asynccontextmanager
async def _failing() -> AsyncIterator[None]:
    """Turn what a pattern says of a refused value into what it is here: an agent that failed."""
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


def _calls(crew: Crew, jobs: Sequence[Job]) -> list[Call[WorkerResult]]:
    return [partial(crew.dispatch.done, job) for job in jobs]


def _value(outcome: Outcome[WorkerResult]) -> WorkerResult:
    match outcome:
        case Ok(value):
            return value
        case Err(error):
            raise error
        case _:
            raise asyncio.CancelledError


def _listed(tasks: Sequence[TaskLike]) -> list[Task]:
    if isinstance(tasks, str | bytes | Mapping):
        raise BadInput("tasks come in a list; put this one into brackets")
    return list(map(Task.of, tasks))


def _strategy(name: str) -> MergeStrategy:
    if name not in set(MergeStrategy):
        raise UnknownName("strategy", name, [one.value for one in MergeStrategy])
    return MergeStrategy(name)


def _informed(task: TaskLike, before: Sequence[WorkerResult]) -> Task:
    made = Task.of(task)
    return replace(made, inputs=(*made.inputs, *before))
