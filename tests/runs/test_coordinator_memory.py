"""A coordinator's memory stays the same, however many sessions it has run."""

import gc
import tracemalloc
from pathlib import Path

import pytest

from shoal import AgentCoordinator, Task
from shoal.steps.attempts import MOST_RETIRED

BATCH = 100
MEASURED = 400
MOST_BYTES_EACH = 500
"""Its name stays, so that no other session gets it: about 100 bytes."""


async def run_sessions(coordinator: AgentCoordinator, count: int) -> None:
    for _ in range(count // BATCH):
        tasks = [Task(prompt="x", agent={"adapter": "command", "command": ["true"]}) for _ in range(BATCH)]
        results = await coordinator.run_agents(tasks)
        assert {result.status.value for result in results} == {"no_changes"}
    gc.collect()


@pytest.mark.deep
@pytest.mark.timeout(1200)
async def test_a_session_that_has_ended_leaves_nothing_in_memory(repo: Path) -> None:
    async with AgentCoordinator(repo=repo, max_concurrent=4, sandbox="none", network="host") as coordinator:
        tracemalloc.start()
        try:
            await run_sessions(coordinator, MOST_RETIRED + BATCH)  # so many results are kept for those who ask
            before, _ = tracemalloc.get_traced_memory()
            await run_sessions(coordinator, MEASURED)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert (after - before) / MEASURED < MOST_BYTES_EACH
