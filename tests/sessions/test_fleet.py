"""Many agents at once: hundreds of idle ones cost the coordinator little, and dozens of writers do not interfere.

The claims themselves, with a thousand and with a hundred, are measured by `make bench`. Here as many are held as come
up in some time, and every bound is for each of them: how quick the machine is decides nothing.
"""

from pathlib import Path

import pytest

from scripts.bench_fleet import held, own_databases

pytestmark = [pytest.mark.deep, pytest.mark.alone, pytest.mark.timeout(600)]

PATIENCE = 90.0


async def test_idle_agents_cost_little_memory_and_time(repo: Path) -> None:
    """Must show 4: 0.15 MB and a hundredth of a percent of a core are the claim for each."""
    found = await held(repo, 300, 10.0, patience=PATIENCE)

    assert found.agents > 0
    assert found.memory_mb - found.idle_mb < 40 + 0.2 * found.agents
    assert found.cpu_percent < 10 + 0.03 * found.agents
    assert found.threads < 6


async def test_agents_write_their_own_databases_and_none_is_locked_or_starved(repo: Path) -> None:
    found = await own_databases(repo, 50, 5.0)

    assert found.errors == 0
    assert found.least >= 3
    assert found.rows > 50 * 5
