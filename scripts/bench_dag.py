"""The cost of a pipeline with very many steps: Shoal's own time for each of 2,000 trivial ones.

Its own time is that of its process; the time of the commands and of the programs that start them is printed beside it.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from scripts.bench_fleet import repository
from shoal.cli.follow import make_request, seldom_collected
from shoal.model.status import Status
from shoal.pipeline.load import load
from shoal.pipeline.plan import plan
from shoal.runs.run import run

STEPS = int(os.environ.get("SHOAL_BENCH_STEPS", "2000"))
WIDTH = 200
RUNS = 3
WANTED_MS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a step, in milliseconds."""

    steps: int
    load_ms: float
    own_ms: float
    others_ms: float
    wall_ms: float

    def __str__(self) -> str:
        return (
            f"{self.steps} steps, {WIDTH} wide: {self.load_ms + self.own_ms:.1f} ms of Shoal's own time each"
            f" ({WANTED_MS:g} allowed; {self.load_ms:.1f} of them reading and planning), {self.others_ms:.1f} ms of the"
            f" processes that it started, {self.wall_ms:.1f} ms by the clock"
        )


def main() -> None:
    """Measure three times, because the machine may be busy, and print each."""
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(prefix="shoal-dag-", ignore_cleanup_errors=True) as folder:
            print(asyncio.run(cost(repository(Path(folder, "repo"), 200), STEPS)), flush=True)


async def cost(repo: Path, steps: int) -> Cost:
    """Run *steps* steps, in layers that each need the one before."""
    file = repo / "dag.yaml"
    file.write_text(document(steps))
    began, own, others = time.monotonic(), time.process_time(), children()
    made = plan(load(file), environ=os.environ)
    planned = time.process_time()
    with seldom_collected():  # like `shoal run`
        report = await run(made, make_request(made, repo), stop=asyncio.Event())
    assert report.status is Status.SUCCEEDED, report.status
    assert len(report.steps) == steps
    each = 1000 / steps
    return Cost(
        steps=steps,
        load_ms=(planned - own) * each,
        own_ms=(time.process_time() - planned) * each,
        others_ms=(children() - others) * each,
        wall_ms=(time.monotonic() - began) * each,
    )


def document(steps: int) -> str:
    """Write a pipeline whose steps are in layers of the width."""
    lines = [f"runtime: {{sandbox: none, max_concurrent_workers: {WIDTH}}}", "steps:"]
    for number in range(steps):
        needs = f", needs: [s{number - WIDTH}]" if number >= WIDTH else ""
        lines.append(f'  - {{name: s{number}, command: "true"{needs}}}')
    return "\n".join(lines) + "\n"


def children() -> float:
    """Return the time of all processes that were started and have ended."""
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
