"""Partial failure: every task runs to its end, failed ones are retried, and the successes are used."""

import asyncio

from shoal import AgentCoordinator, Task

FLAKY = {"adapter": "scripted", "script": [{"run": 'grep -q "This is attempt 2" "$SHOAL_PROMPT_FILE"'}]}
BROKEN = {"adapter": "scripted", "script": [{"fail": "cannot be done"}]}


async def main() -> None:
    """Run an agent that succeeds at the second attempt, and one that never does."""
    retry = {"max_attempts": 2, "wait_seconds": 0}
    async with AgentCoordinator(repo=".") as coordinator:
        results = await coordinator.settled([Task("Try it", agent=agent, retry=retry) for agent in (FLAKY, BROKEN)])
    for result in results:
        print(result.status, "after", result.attempts, "attempts")


asyncio.run(main())

# prints no_changes after 2 attempts
# prints failed after 2 attempts
