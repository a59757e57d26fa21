"""The memory of a coordinator that runs thousands of sessions: it should be the same at the end as after the first."""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.bench_history import make_repository
from shoal import AgentCoordinator, Task

SESSIONS = int(os.environ.get("SHOAL_BENCH_SESSIONS", "5000"))
BATCH = 250


def main() -> None:
    """Run the sessions in batches, and print the memory after each batch."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    try:
        asyncio.run(measure(make_repository(folder / "repo")))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def measure(repo: Path) -> None:
    """Print the resident memory as sessions end; more than half of them must cost nothing any more."""
    sizes: list[int] = []
    async with AgentCoordinator(repo=repo, max_concurrent=4, sandbox="none", network="host") as coordinator:
        for number in range(BATCH, SESSIONS + 1, BATCH):
            tasks = [Task(prompt="x", agent={"adapter": "command", "command": ["true"]}) for _ in range(BATCH)]
            results = await coordinator.run_agents(tasks)
            if any(not result.status.is_good for result in results):
                sys.exit("a session failed")
            del results, tasks
            sizes.append(resident_kib())
            print(f"{number:>6} sessions {sizes[-1] / 1024:>7.1f} MB", flush=True)
    half = len(sizes) // 2
    grown = (sizes[-1] - sizes[half]) * 1024 / max(1, (len(sizes) - 1 - half) * BATCH)
    print(f"{grown:.0f} bytes for each session of the second half")


def resident_kib() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    main()
