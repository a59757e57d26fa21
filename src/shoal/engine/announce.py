"""The first word of a run: what it stands on, what holds its agents, and what a person should know of it."""

import asyncio
import os

from shoal.engine.bounds import spelt
from shoal.engine.grants import outside_notes
from shoal.engine.session import unmasked
from shoal.engine.setup_project import setup_notes
from shoal.engine.site import Site
from shoal.git.repository import dirt
from shoal.model.events import RunStarted
from shoal.model.limits import ResourceLimits
from shoal.model.plan import Approval, Plan, everything
from shoal.model.policy import Network

STATUS_SECONDS = 3.0


async def announced(site: Site, plan: Plan, limits: ResourceLimits | None = None) -> RunStarted:
    """Record that the run begins; *limits* are those of tasks that are not known yet."""
    dirty = await _dirty(site)
    started = RunStarted(
        run=site.run,
        name=plan.name,
        base=site.base.commit,
        wall=site.sandbox.name,
        workspace=site.kind.name,
        owner=os.getpid(),
        notes=(
            *plan.notes,
            *setup_notes(site, plan),
            *dirty,
            *_gaps(site, plan),
            *_other_walls(site, plan),
            *outside_notes(plan),
            *unmasked(site.mask),
        ),
        limits=_limits(site, plan, limits),
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


def _limits(site: Site, plan: Plan, otherwise: ResourceLimits | None) -> str:
    """Say in one line what holds the agents, and to what."""
    asked = [task.limits for task in plan.assignments] or [otherwise]
    each = {spelt(limits or ResourceLimits.unnamed()) for limits in asked}
    name = f"{site.enforcer.name} (not exact, docs/limits.md says why)" if site.enforcer.gaps else site.enforcer.name
    return f"{name}: {'; or '.join(sorted(each))} each"


def _other_walls(site: Site, plan: Plan) -> tuple[str, ...]:
    """Name the steps that are not behind the run's wall, and gates that nothing keeps agents away from."""
    other = [step for step in plan.working if step.sandbox not in (None, site.sandbox.name)]
    told = [f"step {step.name}: wall {step.sandbox}, in place of the run's" for step in other]
    has_gates = any(isinstance(stage, Approval) for stage in everything(plan.steps))
    if has_gates and "none" in (site.sandbox.name, *(step.sandbox for step in other)):
        told.append("an agent without a wall can answer gates itself")
    return tuple(told)


def _gaps(site: Site, plan: Plan) -> tuple[str, ...]:
    """What the wall does not hold, as far as this run has to do with it."""
    on_host = any(Network.HOST in (task.network, task.agent.network) for task in plan.assignments)
    return site.sandbox.gaps if on_host or site.sandbox.name != "bubblewrap" else ()
