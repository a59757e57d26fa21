"""Independent tasks: run several at once and get the results in the order of the tasks.

Run it inside a git repository. The agent is a stand-in, a shell that runs its prompt. Replace it with an agent of your
`shoal.yaml`, with `"claude"`, or with another command.
"""

import asyncio

from shoal import AgentCoordinator

AGENT = {"adapter": "command", "command": ["sh", "-s"]}
TASKS = [
    "echo 'with error handling' > parser.txt",
    "echo 'tests' > tests.txt; exit 1",  # this one fails; the others go on
    "echo 'how to use it' > USE.md",
]


async def main() -> None:
    """Run the tasks and print how each ended."""
    async with AgentCoordinator(repo=".", max_concurrent=3, agent=AGENT) as coordinator:
        results = await coordinator.run_agents(TASKS)
    for result in results:
        print(result.status, "has a branch" if result.branch else "has none")


asyncio.run(main())

# prints succeeded has a branch
# prints failed has a branch
# prints succeeded has a branch
