"""Everything about a plan that can be refused before any of its agents starts."""

from collections.abc import Mapping

from shoal.adapters.host import Host
from shoal.adapters.kind import Adapter
from shoal.adapters.registry import adapter
from shoal.engine.grants import assert_grants
from shoal.engine.ground import assert_exact_disk
from shoal.engine.site import Site
from shoal.engine.toolchain import toolchain
from shoal.git.refs import refuse_blocked_steps
from shoal.model.assignment import Plan
from shoal.model.masking import Mask


def adapters_for(plan: Plan, host: Host, environ: Mapping[str, str]) -> dict[str, Adapter]:
    """Find the adapter of each step; one whose program is not on this host is refused."""
    found = {step.name: adapter(step.task.agent.adapter, host) for step in plan.steps}
    for step in plan.steps:
        argv = found[step.name].invocation(step.task).argv
        toolchain(argv[0], search=environ.get("PATH", ""), private=())
        if step.task.agent.adapter == "python":
            from shoal.engine.inprocess import assert_agent  # brings in pydantic-ai, which only its users pay for

            assert_agent(step.task.agent)
    return found


async def assert_ready(site: Site, plan: Plan, adapters: Mapping[str, Adapter]) -> None:
    """Refuse a plan that stands in the way of branches, or asks for what cannot be held here."""
    await refuse_blocked_steps(site.repository, [step.name for step in plan.steps])
    await assert_holdable(site, plan, adapters)


async def assert_holdable(site: Site, plan: Plan, adapters: Mapping[str, Adapter]) -> None:
    """Refuse a plan that asks for what cannot be held here."""
    assert_grants(site, plan, adapters)
    if any(step.task.limits is not None and step.task.limits.is_exact for step in plan.steps):
        await assert_exact_disk(site.sandbox, site.paths)


def mask_of(plan: Plan) -> Mask:
    """Know the values that were taken from the host's environment: they are secrets."""
    return Mask.of(*(values for step in plan.steps for values in step.task.secret_values))
