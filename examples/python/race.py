"""A race: the first success wins; the others are stopped, and their work is kept."""

import asyncio

from shoal import AgentCoordinator

AGENT = {"adapter": "command", "command": ["sh", "-s"]}
APPROACHES = ["exit 1", "sleep 60", "echo fixed > fix.txt"]


async def main() -> None:
    """Try three approaches, and continue with the winner."""
    async with AgentCoordinator(repo=".", agent=AGENT) as coordinator:
        winner = await coordinator.race(APPROACHES)
        checked = await coordinator.run_command("cat fix.txt", base=winner)
    print(winner.status, checked.output.strip())


asyncio.run(main())

# prints succeeded fixed
