"""More items than agents at once: a stream takes an item only when there is room, and yields results as they come."""

import asyncio
from contextlib import aclosing

from shoal import AgentCoordinator, Task

AGENT = {"adapter": "command", "command": ["sh", "-s"]}


async def main() -> None:
    """Process the items two at a time."""
    items = (Task(f"echo {number}", name=f"item-{number}") for number in range(1, 6))  # could be endless
    coordinator = AgentCoordinator(repo=".", max_concurrent=2, agent=AGENT)
    succeeded = 0
    async with coordinator, aclosing(coordinator.stream(items)) as results:
        async for result in results:
            succeeded += result.status.is_good
    print(succeeded, "of 5")


asyncio.run(main())

# prints 5 of 5
