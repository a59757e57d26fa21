"""Running jobs as sessions of one run: each in a slot of the limiter, on its own base, tried again where asked."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from shoal.engine.admission import Admission
from shoal.engine.briefing import again
from shoal.engine.client_settings import set_aside
from shoal.engine.job import Job
from shoal.engine.pins import pin
from shoal.engine.session import FAULTS, masked, run_session
from shoal.engine.site import Site
from shoal.errors import Refused
from shoal.model.repository import Base
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.model.usage import summed
from shoal.patterns.limiter import Limiter
from shoal.patterns.retry import retrying
from shoal.workspaces.base import base_ready
from shoal.workspaces.delta import delta_ready
from shoal.workspaces.overlay import Overlay

APART_SECONDS = 0.05  # a cancel that comes before the last one was seen is one with it


@dataclass(frozen=True, slots=True)
class Place:
    """Whose result it is: a worker of a step."""

    step: str
    index: int


def is_good(result: WorkerResult) -> bool:
    """Say whether a session ended well, for patterns that ask."""
    return result.status.is_good


class Dispatch:
    """The sessions of one run; *active* are those that run now, *results* the last result of each worker."""

    def __init__(self, site: Site, limiter: Limiter, admission: Admission) -> None:
        self.site = site
        self.limiter = limiter
        self.active: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self.results: dict[Place, WorkerResult] = {}
        self.spent: dict[str, float] = {}
        """What all sessions spent on models so far, those that were tried again too."""
        self.jobs: dict[Place, Job] = {}
        """What each worker was given last, for who has it done again."""
        self._admission = admission

    async def done(self, job: Job) -> WorkerResult:
        """Run *job*, again while it fails and has attempts left; cancelled, its result is in `results` all the same."""
        numbers = itertools.count(1)
        self.jobs[Place(job.step, job.index)] = job

        async def attempt() -> WorkerResult:
            # A fresh workspace and a new branch for each: what the former one wrote is kept on its own.
            number = next(numbers)
            return await self._attempt(job if number == 1 else again(job, number, self.result(job)))

        retry = job.task.retry
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
                accept=is_good,
            )
        return self.result(job)

    def result(self, job: Job) -> WorkerResult:
        """Give the last result of the job's worker; one that never started was cancelled."""
        known = self.results.get(Place(job.step, job.index))
        return known or masked(job.unstarted(Status.CANCELLED), self.site.mask)

    def note(self, job: Job, result: WorkerResult) -> None:
        """Keep the result of the job's worker, without secrets: what a session said is without them already."""
        self.results[Place(job.step, job.index)] = result if result.attempts else masked(result, self.site.mask)
        if result.usage:
            self.spent = summed((self.spent, result.usage))

    def forget(self, job: Job) -> None:
        """Let go of the result of a job that nobody will ask for again."""
        self.results.pop(Place(job.step, job.index), None)
        self.jobs.pop(Place(job.step, job.index), None)

    def end_at_once(self) -> None:
        """Cancel every session once more: what it has not brought in yet, the next start does."""
        loop = asyncio.get_running_loop()
        for task in self._tasks.values():
            loop.call_later(APART_SECONDS, task.cancel)

    async def _attempt(self, job: Job) -> WorkerResult:
        async with self.limiter.slot(run=self.site.run, priority=job.task.priority):
            if job.base in (None, self.site.base.commit):
                return await self._session(job.site(self.site), job)
            return await self._elsewhere(job, job.base)

    async def _elsewhere(self, job: Job, base: str) -> WorkerResult:
        """Run *job* from another commit than the run's."""
        async with contextlib.AsyncExitStack() as held:
            try:
                site = await held.enter_async_context(self._based(job, base))
            except FAULTS as error:  # its base is gone: the trouble of this one alone
                self.note(job, job.unstarted(Status.FAILED, f"it cannot start from {base}: {error}"))
                return self.result(job)
            return await self._session(site, job)

    async def _session(self, site: Site, job: Job) -> WorkerResult:
        self.active[job.session] = job
        if (task := asyncio.current_task()) is not None:
            self._tasks[job.session] = task
        try:
            with self._admission.carried():
                return await run_session(site, job, told=lambda result: self.note(job, result))
        finally:
            del self.active[job.session]
            self._tasks.pop(job.session, None)

    @contextlib.asynccontextmanager
    async def _based(self, job: Job, commit: str) -> AsyncIterator[Site]:
        site = job.site(self.site)
        aside = await set_aside(site, job, commit)
        start = commit if aside is None else aside.start
        await pin(site.repository, site.run, start)
        async with _base(site, start) as base:
            yield replace(site, base=base, base_stays=False, aside=aside)


def _base(site: Site, commit: str) -> contextlib.AbstractAsyncContextManager[Base]:
    """Check out only what differs from the run's base, where a layer over it will do."""
    if isinstance(site.kind, Overlay):
        return delta_ready(site.repository, commit, site.base, site.paths.bases)
    return base_ready(site.repository, commit, site.paths.bases)
