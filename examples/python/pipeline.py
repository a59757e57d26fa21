"""A pipeline: each task is a name, a prompt, and the tasks it depends on and builds on."""

import asyncio

from shoal import AgentCoordinator

AGENT = {"adapter": "command", "command": ["sh", "-s"]}
PIPELINE = [
    ("agent-1", "echo 'greet(name)' > api.md"),
    ("agent-2", "sed 's/^/def /' api.md > api.py", ["agent-1"]),
    ("agent-3", "grep def api.py", ["agent-2"]),
]


async def main() -> None:
    """Run the tasks in the order of their dependencies."""
    async with AgentCoordinator(repo=".", agent=AGENT) as coordinator:
        *_, last = await coordinator.run_agents(PIPELINE)
    print(last.output.strip())


asyncio.run(main())

# prints def greet(name)
