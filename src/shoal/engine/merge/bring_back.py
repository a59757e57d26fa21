"""The end of a run that brings its work together by itself, verified as it lands."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from shoal.engine.dispatch import Dispatch
from shoal.engine.merge.desk import Desk, MergeAsk, Resolving, Verify
from shoal.engine.merge.merge import merge
from shoal.engine.merge.resolve import REDO, RESOLVE
from shoal.engine.merge.verify import Stopped, verifying
from shoal.engine.site import Site
from shoal.model.assignment import Assignment
from shoal.model.conflict_rule import Merging
from shoal.model.contract import Passes
from shoal.model.merge import MergeReport
from shoal.model.results import StepResult
from shoal.patterns.limiter import Limiter
from shoal.store.fold import fold, report
from shoal.store.read import events

AT_ONCE = 3
"""So many verifications run at the same time, at most: all but the first are of what may be asked next."""


async def brought_back(
    dispatch: Dispatch, how: Merging, stop: asyncio.Event, resolver: Assignment | None = None
) -> MergeReport | None:
    """Merge what ended well, as *how* says; `None` when it was stopped before anything was decided."""
    site = dispatch.site
    run = report(fold(events(site.paths, site.run)).runs[site.run])
    desk = Desk(repository=site.repository, paths=site.paths, ledger=site.ledger, report=run)
    ask = MergeAsk(
        strategy=how.strategy,
        into=how.into,
        allow_executable=how.allow_executable_config,
        resolving=Resolving(rule=how.on_conflict, resolver=resolver, stop=stop),
    )
    async with equipped(dispatch, ask, how.verify) as whole:
        try:
            return await merge(desk, whole)
        except Stopped:
            return None


@contextlib.asynccontextmanager
async def equipped(dispatch: Dispatch, ask: MergeAsk, verify: Passes | None) -> AsyncIterator[MergeAsk]:
    """Let a merge have what it needs of boxes: those of *dispatch*, within its limiter."""
    limiter, stop = dispatch.limiter, ask.resolving.stop
    async with verified(dispatch.site, verify, limiter, stop) as check:
        width = min(AT_ONCE, limiter.max_concurrent)
        yield replace(ask, verify=check, width=width, resolving=replace(ask.resolving, dispatch=dispatch))


@contextlib.asynccontextmanager
async def verified(
    site: Site, command: Passes | None, limiter: Limiter | None = None, stop: asyncio.Event | None = None
) -> AsyncIterator[Verify | None]:
    """Hold what says of a commit why it is not good; nothing where there is no *command*."""
    if command is None:
        yield None
        return
    async with verifying(site, command, limiter=limiter, stop=stop) as verifier:

        async def verify(commit: str) -> str | None:
            found = await verifier(commit)
            return None if found.ok else found.log

        yield verify


def resolving_steps(site: Site) -> tuple[StepResult, ...]:
    """Give the steps that were made to resolve conflicts of the run."""
    run = report(fold(events(site.paths, site.run)).runs[site.run])
    return tuple(step for step in run.steps if step.step.endswith((RESOLVE, REDO)))
