"""A whole run: its stages by their needs, its workers by their rules under one limit, and a report at the end."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial

from shoal.adapters.host import this_host
from shoal.engine.admission import Admission, admitting
from shoal.engine.announce import announced
from shoal.engine.conclude import concluded, run_status
from shoal.engine.dispatch import Dispatch
from shoal.engine.gate import door_of
from shoal.engine.merge.bring_back import brought_back, resolving_steps
from shoal.engine.muster import (
    adapters_for,
    assert_holdable,
    assert_installed,
    assert_rooted,
    equipped,
    mask_of,
    with_commits,
)
from shoal.engine.overlaps import alternatives_of, overlaps_told
from shoal.engine.perform import Performance
from shoal.engine.prepare import Ask, prepared
from shoal.engine.room import carried
from shoal.engine.scope import Scope
from shoal.engine.site import Site
from shoal.engine.stage_end import started
from shoal.engine.step import Steps, all_jobs
from shoal.engine.sweep import sweep
from shoal.engine.together import together
from shoal.engine.toolchain import searching
from shoal.errors import first_of
from shoal.model.events import Recorded, RunEnded
from shoal.model.plan import Plan
from shoal.model.results import RunReport
from shoal.model.status import Status

Listener = Callable[[Recorded], None]


async def run(plan: Plan, ask: Ask, *, stop: asyncio.Event, listen: Listener | None = None) -> RunReport:
    """Run *plan* and report; setting *stop* ends the agents, keeps their work and reports what there is."""
    ask = replace(ask, environ=searching(ask.environ, plan.toolchains))
    adapters = adapters_for(plan, this_host(), ask.environ)
    await assert_installed(plan, this_host(), ask.environ)
    began = time.monotonic()
    async with prepared(ask, look=partial(assert_rooted, plan)) as ground:
        site = replace(ground, mask=mask_of(plan, this_host(), ask.environ), toolchains=plan.toolchains)
        if listen is not None:
            site.ledger.subscribe(listen)
        await assert_holdable(site, plan, adapters)
        plan = replace(plan, steps=await with_commits(site.repository, plan.steps))
        equipment = await equipped(site, plan, adapters)
        await sweep(site)
        words = await announced(site, plan)
        admission = Admission(site.paths.root)
        limiter = admitting(site, admission, min(plan.max_concurrent, carried()))
        dispatch = Dispatch(site, limiter, admission)
        status, merged = Status.CANCELLED, None
        try:
            async with overlaps_told(site, alternatives_of(plan)) as overlaps:
                with door_of(site) as door:
                    steps = Steps(dispatch, equipment, plan.reviewers, door, approve_all=ask.approve_all)
                    performance = Performance(steps)
                    await _until(stop, dispatch, _performed(performance, plan))
                ended = await concluded(performance, plan)
                status = run_status(plan, performance, ended)
                if plan.merging is not None and not stop.is_set():
                    resolver = plan.reviewers.get(plan.merging.resolver or "")
                    merged = await brought_back(dispatch, plan.merging, stop, resolver)
                    ended = (*ended, *resolving_steps(site))
        finally:
            seconds = round(time.monotonic() - began, 3)
            await site.ledger.append(RunEnded(run=site.run, status=status, duration_seconds=seconds))
    return RunReport(
        run=site.run,
        status=status,
        base=site.base.commit,
        duration_seconds=seconds,
        steps=ended,
        wall=words.wall,
        workspace=words.workspace,
        limits=words.limits,
        notes=words.notes,
        usage=dispatch.spent,
        merge=merged,
        overlaps=tuple(overlaps.found),
    )


async def _performed(performance: Performance, plan: Plan) -> None:
    """Do all stages: by the plan's own rule if it has one, else each by its own."""
    steps = performance.steps
    if plan.rule is None:
        await performance.all(plan.steps, None, _scope(steps.site, plan))
        return
    await started(steps.site, plan.steps)
    await together(steps.dispatch, all_jobs(steps, plan.working), plan.rule)


def _scope(site: Site, plan: Plan) -> Scope:
    given = {} if plan.input is None else {"input": plan.input}
    return Scope({**given, "run": {"id": site.run, "pipeline": plan.name}})


async def _until(stop: asyncio.Event, dispatch: Dispatch, work: Coroutine[None, None, None]) -> None:
    """Do *work* to its end, or cancel it when *stop* is set: each session keeps what its agent did.

    Cancelled after that, it ends the sessions at once: task groups that are ending already would not pass that on.
    """
    try:
        async with asyncio.TaskGroup() as group:
            doing, told = group.create_task(work), group.create_task(stop.wait())
            try:
                await asyncio.wait((doing, told), return_when=asyncio.FIRST_COMPLETED)
                doing.cancel()
                told.cancel()
                await asyncio.wait((doing,))
            except asyncio.CancelledError:
                if stop.is_set():  # it was asked before, if only an instant ago
                    dispatch.end_at_once()
                raise
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
