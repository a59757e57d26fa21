"""Going on in spite of failures: all come to an end, what failed is tried again, and what worked is used."""

import asyncio

from shoal import AgentCoordinator, Task

AGENT = {"adapter": "scripted", "script": [{"run": 'grep -q "This is attempt 2" "$SHOAL_PROMPT_FILE"'}]}
NEVER = {"adapter": "scripted", "script": [{"fail": "cannot be done"}]}


async def main() -> None:
    """Run one that works at the second attempt, and one that never does."""
    retry = {"max_attempts": 2, "wait_seconds": 0}
    async with AgentCoordinator(repo=".") as coordinator:
        results = await coordinator.settled([Task("Try it", agent=one, retry=retry) for one in (AGENT, NEVER)])
    for result in results:
        print(result.status, "after", result.attempts, "attempts")


asyncio.run(main())

# prints no_changes after 2 attempts
# prints failed after 2 attempts
