"""A whole run: its steps at once, its workers by their rules under one limit, and a report at the end."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from shoal.adapters.host import this_host
from shoal.adapters.kind import Adapter
from shoal.engine.admission import Admission, admitting
from shoal.engine.announce import announced
from shoal.engine.dispatch import Dispatch
from shoal.engine.job import Job
from shoal.engine.muster import adapters_for, assert_ready, mask_of
from shoal.engine.prepare import Ask, prepared
from shoal.engine.room import carried
from shoal.engine.schedule import Jobs, in_turn
from shoal.engine.site import Site
from shoal.engine.sweep import sweep
from shoal.engine.together import together, verdict
from shoal.errors import first_of
from shoal.git.repository import resolve
from shoal.model.assignment import Plan, Step
from shoal.model.events import Recorded, RunEnded, StepEnded, StepStarted
from shoal.model.results import RunReport, StepResult, WorkerResult
from shoal.model.rule import Rule
from shoal.model.status import Status

Listener = Callable[[Recorded], None]


async def run(plan: Plan, ask: Ask, *, stop: asyncio.Event, listen: Listener | None = None) -> RunReport:
    """Run *plan* and report; setting *stop* ends the agents, keeps their work and reports what there is."""
    adapters = adapters_for(plan, this_host(), ask.environ)
    began = time.monotonic()
    async with prepared(ask) as ground:
        site = replace(ground, mask=mask_of(plan))
        if listen is not None:
            site.ledger.subscribe(listen)
        await assert_ready(site, plan, adapters)
        jobs = {step.name: _jobs(step, adapters[step.name], await _base(site, step)) for step in plan.steps}
        await sweep(site)
        started = await announced(site, plan)
        admission = Admission(site.paths.root)
        limiter = admitting(site, admission, min(plan.max_concurrent, carried()))
        dispatch = Dispatch(site, limiter, admission)
        status = Status.CANCELLED
        try:
            await _until(stop, dispatch, _worked(dispatch, plan, jobs))
            steps = await _concluded(dispatch, plan, jobs)
            status = _run_status(plan, steps)
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


def _jobs(step: Step, adapter: Adapter, base: str | None) -> tuple[Job, ...]:
    return tuple(
        Job(
            step=step.name,
            index=index,
            count=step.workers,
            task=step.task,
            adapter=adapter,
            base=base,
            needs=step.needs,
            is_stacked=step.is_stacked,
            wish=step.wish,
        )
        for index in range(step.workers)
    )


async def _until(stop: asyncio.Event, dispatch: Dispatch, work: Coroutine[None, None, None]) -> None:
    """Do *work* to its end, or cancel it when *stop* is set: each session keeps what its agent did.

    Cancelled after that, it ends the sessions at once: task groups that are ending already would not pass that on.
    """
    try:
        async with asyncio.TaskGroup() as group:
            doing, told = group.create_task(work), group.create_task(stop.wait())
            await asyncio.wait((doing, told), return_when=asyncio.FIRST_COMPLETED)
            doing.cancel()
            told.cancel()
            try:
                await asyncio.wait((doing,))
            except asyncio.CancelledError:
                dispatch.end_at_once()
                raise
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None


async def _worked(dispatch: Dispatch, plan: Plan, jobs: Jobs) -> None:
    """Run all jobs: by the plan's own rule if it has one, else each step by its own."""
    run = dispatch.site.run
    await dispatch.site.ledger.append(
        *(StepStarted(run=run, step=step.name, workers=step.workers, on_failure=step.on_failure) for step in plan.steps)
    )
    if plan.rule is not None:
        await together(dispatch, [job for step in plan.steps for job in jobs[step.name]], plan.rule)
        return
    known = {step.name: step for step in plan.steps}

    async def work(own: tuple[Job, ...]) -> None:
        await together(dispatch, own, Rule.on_failure(known[own[0].step].on_failure))
        await _step_ended(dispatch, _step_result(dispatch, plan, known[own[0].step], own))

    await in_turn(dispatch, jobs, work, lambda name, results: _is_met(known[name], results))


def _is_met(step: Step, results: Sequence[WorkerResult]) -> bool:
    """Say whether those that need *step* may start: it ended well, or partly so where that was asked for."""
    ended = verdict(Rule.on_failure(step.on_failure), results)
    return step.is_optional or ended in (Status.SUCCEEDED, Status.DEGRADED)


async def _step_ended(dispatch: Dispatch, step: StepResult) -> None:
    await dispatch.site.ledger.append(StepEnded(run=dispatch.site.run, step=step.step, status=step.status))


async def _base(site: Site, step: Step) -> str | None:
    return None if step.base is None else await resolve(site.repository, step.base)


async def _concluded(dispatch: Dispatch, plan: Plan, jobs: Jobs) -> tuple[StepResult, ...]:
    """Say how each step ended; one that was stopped or never began is recorded only here."""
    steps = tuple(_step_result(dispatch, plan, step, jobs[step.name]) for step in plan.steps)
    for one in steps:
        if plan.rule is not None or one.status in (Status.CANCELLED, Status.SKIPPED):
            await _step_ended(dispatch, one)
    return steps


def _step_result(dispatch: Dispatch, plan: Plan, step: Step, jobs: tuple[Job, ...]) -> StepResult:
    results = tuple(dispatch.result(job) for job in jobs)
    # By the plan's own rule a step is not judged alone: its workers were stopped for the sake of others.
    rule = Rule("settled") if plan.rule else Rule.on_failure(step.on_failure)
    return StepResult(step=step.name, on_failure=step.on_failure, status=verdict(rule, results), worker_results=results)


def _run_status(plan: Plan, steps: tuple[StepResult, ...]) -> Status:
    if plan.rule is not None:
        results = [worker for step in steps for worker in step.worker_results]
        return verdict(plan.rule, results)
    optional = {step.name for step in plan.steps if step.is_optional}
    statuses = {step.status for step in steps if step.step not in optional}
    if statuses <= {Status.SUCCEEDED}:
        return Status.SUCCEEDED
    if Status.SUCCEEDED in statuses or Status.DEGRADED in statuses:
        return Status.DEGRADED
    return Status.CANCELLED if statuses == {Status.CANCELLED} else Status.FAILED
