"""Going on with a run that has ended: its wall and its base once more, for what a later merge needs of boxes."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

from shoal.adapters.host import this_host
from shoal.engine.admission import Admission, admitting
from shoal.engine.dispatch import Dispatch
from shoal.engine.muster import adapters_for, assert_holdable, assert_installed, mask_of
from shoal.engine.pins import pin
from shoal.engine.prepare import Ask, prepared
from shoal.engine.room import carried
from shoal.engine.sweep import run_swept, sweep
from shoal.errors import BadInput
from shoal.model.assignment import Assignment
from shoal.model.plan import Plan
from shoal.store.fold import RunState


@contextlib.asynccontextmanager
async def reopened(
    folder: Path, environ: Mapping[str, str], run: RunState, at_once: int, resolver: Assignment | None = None
) -> AsyncIterator[Dispatch]:
    """Hold what sessions of *run* are run with, up to *at_once*; whatever they leave is recorded as the run's."""
    if not run.status.is_ended:
        raise BadInput(f"{run.run} is not over yet; wait for it with `shoal status`, then merge it")
    plan = Plan(name=run.name, steps=(), reviewers={} if resolver is None else {"resolver": resolver})
    host = this_host()
    adapters_for(plan, host, environ)
    await assert_installed(plan, host, environ)
    ask = Ask(folder=folder, environ=environ, name=run.name, run=run.run, base=run.base)
    ask = replace(ask, sandbox=run.wall or ask.sandbox)
    async with prepared(ask) as ground:
        site = replace(ground, mask=mask_of(plan, host, environ))
        await assert_holdable(site, plan, {})
        await sweep(site)
        await run_swept(site, site.run)  # what a killed merge of this very run left
        await pin(site.repository, site.run, site.base.commit)
        admission = Admission(site.paths.root)
        yield Dispatch(site, admitting(site, admission, min(at_once, carried())), admission)
