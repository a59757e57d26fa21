"""Independent tasks: several at once, all to their end, results in the order of the tasks.

Run it inside of a git repository. The agent is a stand-in, a shell that does what its prompt says; put a name of yours
from `shoal.yaml`, or another command, in its place.
"""

import asyncio

from shoal import AgentCoordinator

AGENT = {"adapter": "command", "command": ["sh", "-s"]}
TASKS = [
    "echo 'with error handling' > parser.txt",
    "echo 'tests' > tests.txt; exit 1",  # this one fails, and disturbs nobody
    "echo 'how to use it' > USE.md",
]


async def main() -> None:
    """Run them, and say how each ended."""
    async with AgentCoordinator(repo=".", max_concurrent=3, agent=AGENT) as coordinator:
        results = await coordinator.run_agents(TASKS)
    for result in results:
        print(result.status, "has a branch" if result.branch else "has none")


asyncio.run(main())

# prints succeeded has a branch
# prints failed has a branch
# prints succeeded has a branch
