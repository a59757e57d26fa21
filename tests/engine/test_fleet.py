"""Many agents at once: a thousand held cost the coordinator little, and a hundred writers do not meet."""

from pathlib import Path

import pytest

from scripts.bench_fleet import held, own_databases

pytestmark = [pytest.mark.deep, pytest.mark.alone]


async def test_a_thousand_idle_agents_cost_little_memory_and_time(repo: Path) -> None:
    """Must show 4; the bounds are wider than the claim, for memory of a test process and a busy machine."""
    found = await held(repo, 1000)

    assert found.memory_mb < 250
    assert found.cpu_percent < 20
    assert found.threads < 5


async def test_a_hundred_agents_write_their_own_databases_and_none_is_locked_or_starved(repo: Path) -> None:
    found = await own_databases(repo, 100, 10.0)

    assert found.errors == 0
    assert found.least >= 10
    assert found.rows > 100 * 20
