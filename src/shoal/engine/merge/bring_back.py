"""The end of a run that brings its work together by itself, verified as it lands."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from shoal.engine.merge.desk import Desk, MergeAsk, Verify
from shoal.engine.merge.merge import merge
from shoal.engine.merge.verify import Stopped, verifying
from shoal.engine.site import Site
from shoal.model.conflict_rule import Merging
from shoal.model.contract import Passes
from shoal.model.merge import MergeReport
from shoal.patterns.limiter import Limiter
from shoal.store.fold import fold, report
from shoal.store.read import events


async def brought_back(site: Site, how: Merging, limiter: Limiter, stop: asyncio.Event) -> MergeReport | None:
    """Merge what ended well, as *how* says; `None` when it was stopped before anything was decided."""
    run = report(fold(events(site.paths, site.run)).runs[site.run])
    desk = Desk(repository=site.repository, paths=site.paths, ledger=site.ledger, report=run)
    async with verified(site, how.verify, limiter, stop) as verify:
        ask = MergeAsk(
            strategy=how.strategy, into=how.into, allow_executable=how.allow_executable_config, verify=verify
        )
        try:
            return await merge(desk, ask)
        except Stopped:
            return None


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
