"""An open run of a program's own: tasks come in over time, and each becomes a job that may start."""

import asyncio
import contextlib
import importlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.adapters.host import this_host
from shoal.engine.admission import Admission, admitting
from shoal.engine.announce import announced
from shoal.engine.assign import Usual, assert_order, assignment, named
from shoal.engine.dispatch import Dispatch
from shoal.engine.held import OpenSession, held_session, holding
from shoal.engine.job import Job
from shoal.engine.merge.bring_back import brought_back
from shoal.engine.muster import adapters_for, assert_holdable, assert_installed, secret_values
from shoal.engine.overlaps import overlaps_told
from shoal.engine.pins import pin
from shoal.engine.prepare import Ask, prepared
from shoal.engine.room import carried
from shoal.engine.roster import Roster
from shoal.engine.settings import Settings
from shoal.engine.site import Site
from shoal.engine.sweep import sweep
from shoal.errors import BadInput
from shoal.git.refs import assert_unblocked, listed
from shoal.git.repository import resolve
from shoal.model.assignment import Assignment
from shoal.model.conflict_rule import Merging
from shoal.model.events import Recorded, RunEnded, StepEnded, StepStarted
from shoal.model.masking import Mask
from shoal.model.merge import Strategy
from shoal.model.plan import Plan, Step
from shoal.model.results import RunReport, WorkerResult
from shoal.model.status import Status
from shoal.model.task import AgentLike, Task, TaskLike
from shoal.patterns.limiter import Limiter, use_limiter
from shoal.store.fold import fold, report
from shoal.store.read import events


class Crew:
    """The sessions of one coordinator's run."""

    def __init__(self, site: Site, settings: Settings, limiter: Limiter, admission: Admission) -> None:
        self.settings = settings
        self.dispatch = Dispatch(site, limiter, admission)
        self._roster = Roster(site.repository.top, settings.environ, settings.agent, settings.agents)
        self._secrets: list[Mapping[str, str]] = []
        self._workers: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._ended = self._good = 0
        self._taken: dict[str, str] | None = None

    def warm(self) -> None:
        """Load now what settling a task will need, so that the first agent need not wait for it."""
        described = [self.settings.agent, *self.settings.agents.values()]
        if any(isinstance(one, Mapping) for one in described):
            importlib.import_module("shoal.pipeline.plan")

    async def charted(self, tasks: Sequence[Task]) -> list[Job]:
        """Make jobs of tasks that may wait for each other; raise `BadInput` for a wait without end."""
        known = self._named(tasks)
        assert_order(known)
        return await self._jobs(known)

    async def listed(self, tasks: Sequence[Task]) -> list[Job]:
        """Make jobs of tasks that wait for nobody."""
        for task in tasks:
            if task.deps:
                raise BadInput(f"task {task.name or task.prompt!r:.40} has `deps`, which only `run_agents` keeps to")
        return await self._jobs(self._named(tasks))

    async def one(self, task: TaskLike) -> WorkerResult:
        """Run a single task."""
        (job,) = await self.listed([Task.of(task)])
        try:
            return await self.dispatch.done(job)
        finally:
            await self.ended([job])
            self.dispatch.forget(job)  # a stream may be endless

    async def by(self, agent: AgentLike, task: TaskLike) -> WorkerResult:
        """Run a single task by *agent*."""
        return await self.one(replace(Task.of(task), agent=agent))

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[OpenSession]:
        """Open a session that waits for commands."""
        site, step = self.dispatch.site, "pool"
        index = self._index(step)
        if index == 0:
            await site.ledger.append(StepStarted(run=site.run, step=step, workers=1, on_failure="best_effort"))
        async with held_session(site, holding(step, index, self.settings.limits)) as session:
            yield session

    async def ended(self, jobs: Sequence[Job]) -> list[WorkerResult]:
        """Record how the steps of *jobs* ended, and give their results."""
        results = [self.dispatch.result(job) for job in jobs]
        self._ended += len(results)
        self._good += sum(result.status.is_good for result in results)
        run = self.dispatch.site.run
        over = [_step_status(result.status) for result in results]
        marks = [StepEnded(run=run, step=job.step, status=one) for job, one in zip(jobs, over, strict=True)]
        await self.dispatch.site.ledger.append(*marks)
        return results

    def report(self) -> RunReport:
        """Say what came of the run so far."""
        site = self.dispatch.site
        return report(fold(events(site.paths, site.run)).runs[site.run])

    async def resolver(self, agent: AgentLike) -> Assignment:
        """Settle who resolves conflicts; whom this host has not is refused."""
        site = self.dispatch.site
        usual = Usual(private=site.private, limits=self.settings.limits, network=self.settings.network)
        made = assignment(Task(prompt="resolve a conflict", agent=agent, name="resolve"), self._roster, usual)
        plan = Plan(name=self.settings.name, steps=(), reviewers={"resolver": made})
        adapters_for(plan, this_host(), site.environ)
        await assert_installed(plan, this_host(), site.environ)
        await assert_holdable(site, plan, {})
        self._know_secrets(plan)
        return made

    def masked(self, text: str) -> str:
        """Take out of *text* the secrets that are known by now."""
        return self.dispatch.site.mask.text(text)

    @property
    def status(self) -> Status:
        """How the run ends if it ends now."""
        if self._good == self._ended:
            return Status.SUCCEEDED
        return Status.DEGRADED if self._good else Status.FAILED

    def _named(self, tasks: Sequence[Task]) -> list[Task]:
        return named(tasks, (f"task-{number}" for number in self._numbers))

    async def _jobs(self, tasks: Sequence[Task]) -> list[Job]:
        """Settle each task on its agent, refuse what cannot start, and record the steps; nothing runs yet."""
        site = self.dispatch.site
        usual = Usual(private=site.private, limits=self.settings.limits, network=self.settings.network)
        steps = [Step(name=str(task.name), task=assignment(task, self._roster, usual)) for task in tasks]
        plan = Plan(name=self.settings.name, steps=tuple(steps))
        adapters = adapters_for(plan, this_host(), site.environ)
        await assert_installed(plan, this_host(), site.environ)
        await self._assert_unblocked(step.name for step in steps)
        await assert_holdable(site, plan, adapters)
        bases = [await self._base(task) for task in tasks]
        self._know_secrets(plan)
        jobs = [
            Job(
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
            )
            for step, task, base in zip(steps, tasks, bases, strict=True)
        ]
        started = (StepStarted(run=site.run, step=job.step, workers=1, on_failure="best_effort") for job in jobs)
        await site.ledger.append(*started)
        return jobs

    async def _assert_unblocked(self, names: Iterable[str]) -> None:
        """Refuse names by the branches that were there at first: to list them for each task would cost ever more."""
        repository = self.dispatch.site.repository
        if self._taken is None:
            self._taken = await listed(repository, "refs/heads/agent")
        assert_unblocked(repository, names, self._taken)

    async def _base(self, task: Task) -> str | None:
        """Find the commit to build on, and hold it: a slot may be long in coming, and a gc quick."""
        site = self.dispatch.site
        if isinstance(task.base, WorkerResult):
            commit = task.base.commit or task.base.base  # who changed nothing hands on what it stood on
        else:
            commit = None if task.base is None else await resolve(site.repository, task.base)
        if commit not in (None, site.base.commit):
            await pin(site.repository, site.run, commit)
        return commit

    def _in_thread(self, task: Task) -> Callable[..., object] | None:
        wanted = task.agent if task.agent is not None else self.settings.agent
        is_function = callable(wanted) and self.settings.execution_mode == "thread"
        return wanted if is_function and callable(wanted) else None

    def _index(self, step: str) -> int:
        self._workers[step] += 1
        return self._workers[step] - 1

    def _know_secrets(self, plan: Plan) -> None:
        """Mask what came from the host, in all sessions from now on."""
        every = (secret_values(task, this_host(), self.dispatch.site.environ) for task in plan.assignments)
        new = [values for those in every for values in those if values]
        if new:
            self._secrets += new
            self.dispatch.site = replace(self.dispatch.site, mask=Mask.of(*self._secrets))


@contextlib.asynccontextmanager
async def crewed(
    folder: Path,
    settings: Settings,
    listen: Callable[[Recorded], None] | None = None,
    limiter: Limiter | None = None,
) -> AsyncIterator[Crew]:
    """Open a run for tasks that come in over time; what patterns run inside shares its limit."""
    began = time.monotonic()
    async with prepared(_ask(folder, settings)) as site:
        if listen is not None:
            site.ledger.subscribe(listen)
        await sweep(site)
        most = min(settings.max_concurrent, carried())
        few = () if most == settings.max_concurrent else (f"{most} agents at a time: more need more open files",)
        await announced(site, Plan(name=settings.name, steps=(), notes=few), settings.limits)
        admission = Admission(site.paths.root)
        limit = limiter or admitting(site, admission, most)
        crew = Crew(site, settings, limit, admission)
        crew.warm()
        status: Status | None = Status.FAILED  # of a run that was left by an error
        try:
            async with overlaps_told(site, mask=crew.masked):
                with use_limiter(limit):
                    yield crew
            status = None
            if settings.auto_merge:
                await brought_back(crew.dispatch, Merging(strategy=Strategy.AUTO), asyncio.Event())
        except asyncio.CancelledError:
            status = Status.CANCELLED
            raise
        finally:
            took = round(time.monotonic() - began, 3)
            await site.ledger.append(RunEnded(run=site.run, status=status or crew.status, duration_seconds=took))


def _ask(folder: Path, settings: Settings) -> Ask:
    return Ask(
        folder=folder,
        environ=settings.environ,
        name=settings.name,
        base=settings.base,
        strategy=settings.isolation_strategy,
        sandbox=settings.sandbox,
        cleanup=settings.cleanup_on_complete,
        fleet=settings.fleet,
        grace=settings.grace,
    )


def _step_status(status: Status) -> Status:
    if status.is_good:
        return Status.SUCCEEDED
    return status if status in (Status.CANCELLED, Status.SKIPPED) else Status.FAILED
