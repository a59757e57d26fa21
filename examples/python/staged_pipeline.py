"""Stages: each is a list of tasks that run at once and get the results of the previous stage."""

import asyncio

from shoal import AgentCoordinator, Task

ANALYST = {"adapter": "scripted", "script": [{"say": "two problems"}]}
FIXER = {"adapter": "scripted", "script": [{"run": 'grep -l "two problems" "$SHOAL_INPUTS_DIR"/*.json | wc -l'}]}


async def main() -> None:
    """Run three stages."""
    async with AgentCoordinator(repo=".") as coordinator:
        analyses, fixes, checks = await coordinator.stages(
            [Task("Look for bugs", agent=ANALYST), Task("Look for slow code", agent=ANALYST)],
            [Task("Mend it", agent=FIXER), Task("Make it faster", agent=FIXER)],
            [Task.command("test -f README.md"), Task.command("git log -1 --format=%s")],
        )
    print(len(analyses), [fix.output.strip() for fix in fixes], [check.exit_code for check in checks])


asyncio.run(main())

# prints 2 ['2', '2'] [0, 0]
