"""Fire and gather: run several analyses at once, and give one agent all of their results."""

import asyncio

from shoal import AgentCoordinator, Task

ANALYST = {"adapter": "scripted", "script": [{"run": 'echo "$SHOAL_STEP: all is well"'}]}
SYNTHESIST = {"adapter": "scripted", "script": [{"run": 'cat "$SHOAL_INPUTS_DIR"/*.json | grep -c "all is well"'}]}


async def main() -> None:
    """Run three analyses, then combine them."""
    async with AgentCoordinator(repo=".") as coordinator:
        analyses = await coordinator.gather(
            [Task("Analyse it", name=name, agent=ANALYST) for name in ("failures", "timeouts", "accessibility")]
        )
        (synthesis,) = await coordinator.gather(
            [Task("Combine the analyses", name="synthesis", agent=SYNTHESIST, inputs=tuple(analyses))]
        )
    print("analyses in the synthesis:", synthesis.output.strip())


asyncio.run(main())

# prints analyses in the synthesis: 3
