"""Parallel decomposition: run parts of one task at the same time, then a task that starts from their merged work."""

import asyncio

from shoal import AgentCoordinator, Task

AGENT = {"adapter": "command", "command": ["sh", "-s"]}


async def main() -> None:
    """Run the parts and the tasks that depend on them."""
    parts = [Task(f"echo {name} > {name}.txt", name=name) for name in ("parser", "helpers", "app")]
    join = Task("cat parser.txt helpers.txt app.txt", name="join", deps=("parser", "helpers", "app"))
    clash = Task("echo other > parser.txt", name="clash")
    late = Task("cat parser.txt", name="late", deps=("parser", "clash"))  # two of its deps wrote the same file
    async with AgentCoordinator(repo=".", agent=AGENT) as coordinator:
        *_, joined, _, conflicted = await coordinator.run_agents([*parts, join, clash, late])
    print(joined.output.split())
    print(conflicted.status, "parser.txt" in str(conflicted.error))


asyncio.run(main())

# prints ['parser', 'helpers', 'app']
# prints failed True
