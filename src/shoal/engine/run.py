"""A whole run: its steps at once, its workers under one limit, and a report at the end."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from shoal.adapters.host import this_host
from shoal.adapters.kind import Adapter
from shoal.adapters.registry import adapter
from shoal.engine.bounds import spelt
from shoal.engine.job import Job
from shoal.engine.prepare import Ask, prepared
from shoal.engine.room import carried
from shoal.engine.session import run_session
from shoal.engine.site import Site
from shoal.engine.sweep import sweep
from shoal.engine.toolchain import toolchain
from shoal.errors import first_of
from shoal.git.refs import refuse_blocked_steps
from shoal.git.repository import dirt
from shoal.model.events import Recorded, RunEnded, RunStarted, StepEnded, StepStarted
from shoal.model.limits import ResourceLimits
from shoal.model.masking import Mask
from shoal.model.policy import Network
from shoal.model.results import RunReport, StepResult, WorkerResult
from shoal.model.status import Status
from shoal.model.task import Plan, Step

STATUS_SECONDS = 3.0

Listener = Callable[[Recorded], None]


@dataclass(frozen=True, slots=True)
class Running:
    """What the steps of a run share: its site, its limit, and the event that stops it."""

    site: Site
    slots: asyncio.Semaphore
    stop: asyncio.Event


async def run(plan: Plan, ask: Ask, *, stop: asyncio.Event, listen: Listener | None = None) -> RunReport:
    """Run *plan* and report; setting *stop* ends the agents, keeps their work and reports what there is."""
    host = this_host()
    adapters = {step.name: adapter(step.task.agent.adapter, host) for step in plan.steps}
    _assert_programs(plan, adapters, ask)
    began = time.monotonic()
    async with prepared(ask) as ground:
        site = replace(ground, mask=_mask(plan))
        if listen is not None:
            site.ledger.subscribe(listen)
        await refuse_blocked_steps(site.repository, [step.name for step in plan.steps])
        await sweep(site)
        started = await _announced(site, plan)
        status = Status.CANCELLED
        try:
            slots = asyncio.Semaphore(min(plan.max_concurrent, carried()))
            steps = await _steps(Running(site, slots, stop), plan, adapters)
            status = _run_status(steps)
        finally:
            seconds = round(time.monotonic() - began, 3)
            await site.ledger.append(RunEnded(run=site.run, status=status, duration_seconds=seconds))
    return RunReport(
        run=site.run,
        status=status,
        base=site.base.commit,
        duration_seconds=seconds,
        steps=steps,
        wall=started.wall,
        workspace=started.workspace,
        limits=started.limits,
        notes=started.notes,
    )


def _mask(plan: Plan) -> Mask:
    """Know the values that were taken from the host's environment: they are secrets."""
    holders = [holder for step in plan.steps for holder in (step.task, step.task.agent)]
    return Mask.of(*({name: holder.env[name] for name in holder.secrets} for holder in holders))


def _assert_programs(plan: Plan, adapters: Mapping[str, Adapter], ask: Ask) -> None:
    """An agent whose program is not on this host is refused before anything starts."""
    for step in plan.steps:
        argv = adapters[step.name].invocation(step.task).argv
        toolchain(argv[0], search=ask.environ.get("PATH", ""), private=())


async def _steps(running: Running, plan: Plan, adapters: Mapping[str, Adapter]) -> tuple[StepResult, ...]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_step(running, step, adapters[step.name])) for step in plan.steps]
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return tuple(task.result() for task in tasks)


async def _announced(site: Site, plan: Plan) -> RunStarted:
    dirty = await _dirty(site)
    started = RunStarted(
        run=site.run,
        name=plan.name,
        base=site.base.commit,
        wall=site.sandbox.name,
        workspace=site.kind.name,
        owner=os.getpid(),
        notes=(*plan.notes, *dirty, *_gaps(site, plan), *_unmasked(site.mask)),
        limits=_limits(site, plan),
    )
    await site.ledger.append(started)
    return started


async def _dirty(site: Site) -> tuple[str, ...]:
    """Say what of the user's checkout is not in the base; a huge one is not waited for."""
    if not (site.repository.top / ".git").exists():
        return ()
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            uncommitted = await dirt(site.repository)
    except TimeoutError:
        return ("whether your checkout has uncommitted changes is not known: `git status` takes long here",)
    if uncommitted == 1:
        return ("1 uncommitted change is not in the base: agents do not see it",)
    return (f"{uncommitted} uncommitted changes are not in the base: agents do not see them",) if uncommitted else ()


def _limits(site: Site, plan: Plan) -> str:
    """Say in one line what holds the agents, and to what."""
    each = {spelt(step.task.limits or ResourceLimits.unnamed()) for step in plan.steps}
    name = f"{site.enforcer.name} (not exact, docs/limits.md says why)" if site.enforcer.gaps else site.enforcer.name
    return f"{name}: {'; or '.join(sorted(each))} each"


def _unmasked(mask: Mask) -> tuple[str, ...]:
    return tuple(f"the value of {name} is too short to be masked in output" for name in mask.unmasked)


def _gaps(site: Site, plan: Plan) -> tuple[str, ...]:
    """What the wall does not hold, as far as this run has to do with it."""
    on_host = any(Network.HOST in (step.task.network, step.task.agent.network) for step in plan.steps)
    return site.sandbox.gaps if on_host or site.sandbox.name != "bubblewrap" else ()


async def _step(running: Running, step: Step, kind: Adapter) -> StepResult:
    """Run all workers of a step; with `fail_fast` the first failure stops the others, whose work is kept."""
    site = running.site
    await site.ledger.append(
        StepStarted(run=site.run, step=step.name, workers=step.workers, on_failure=step.on_failure)
    )
    stop = _Stop(running.stop)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_worker(running, step, kind, index, stop)) for index in range(step.workers)]
    results = tuple(task.result() for task in tasks)
    status = _step_status(step, results)
    await site.ledger.append(StepEnded(run=site.run, step=step.name, status=status))
    return StepResult(step=step.name, on_failure=step.on_failure, status=status, worker_results=results)


class _Stop:
    """A step's own stop, which the run's stop sets too."""

    def __init__(self, outer: asyncio.Event) -> None:
        self._outer = outer
        self._events: set[asyncio.Event] = set()
        self._is_set = False

    def event(self) -> asyncio.Event:
        """Give one worker an event of its own, set already where the step has been stopped."""
        event = asyncio.Event()
        self._events.add(event)
        if self._is_set:
            event.set()
        return event

    def set(self) -> None:
        """Stop the workers of this step."""
        self._is_set = True
        for event in self._events:
            event.set()


async def _worker(running: Running, step: Step, kind: Adapter, index: int, stop: _Stop) -> WorkerResult:
    own = stop.event()
    async with running.slots:
        job = Job(step=step.name, index=index, count=step.workers, task=step.task, adapter=kind)
        if own.is_set() or running.stop.is_set():
            return WorkerResult(index=index, session=job.session, status=Status.CANCELLED, attempts=0)
        result = await _until_stopped(running, job, own)
    if step.on_failure == "fail_fast" and not result.status.is_good and result.status is not Status.CANCELLED:
        stop.set()
    return result


async def _until_stopped(running: Running, job: Job, own: asyncio.Event) -> WorkerResult:
    async with asyncio.TaskGroup() as group:
        relay = group.create_task(_relay(running.stop, own))
        try:
            return await run_session(running.site, job, own)
        finally:
            relay.cancel()


async def _relay(source: asyncio.Event, target: asyncio.Event) -> None:
    await source.wait()
    target.set()


def _step_status(step: Step, results: tuple[WorkerResult, ...]) -> Status:
    good = sum(result.status.is_good for result in results)
    if good == len(results):
        return Status.SUCCEEDED
    if any(result.status not in (Status.CANCELLED,) and not result.status.is_good for result in results):
        return Status.DEGRADED if good and step.on_failure == "best_effort" else Status.FAILED
    return Status.CANCELLED


def _run_status(steps: tuple[StepResult, ...]) -> Status:
    statuses = {step.status for step in steps}
    if statuses <= {Status.SUCCEEDED}:
        return Status.SUCCEEDED
    if Status.SUCCEEDED in statuses or Status.DEGRADED in statuses:
        return Status.DEGRADED
    return Status.CANCELLED if statuses == {Status.CANCELLED} else Status.FAILED
