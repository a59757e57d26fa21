"""Verification in parallel: every check runs in its own workspace, and all must pass."""

import asyncio

from shoal import AgentCoordinator

CHECKS = ("test -f README.md", "git fsck", "echo lint", "echo build > out.txt")


async def main() -> None:
    """Run all checks at once and look at their exit codes, then run a check that fails."""
    async with AgentCoordinator(4) as coordinator:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(coordinator.run_command(check)) for check in CHECKS]
        results = [task.result() for task in running]
        print("all checks passed" if all(result.exit_code == 0 for result in results) else "some checks failed")

        failed = await coordinator.run_command("exit 3")
        print(failed.exit_code, failed.error)


asyncio.run(main())

# prints all checks passed
# prints 3 it exited with 3
