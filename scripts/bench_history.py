"""The cost of commands in a repository with a long history, as ratios to starting Python."""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shoal.model.events import RunEnded, RunStarted, SessionEnded, SessionStarted, StepEnded, StepStarted
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.store.ledger import Ledger, open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at

SIZES = tuple(int(size) for size in os.environ.get("SHOAL_BENCH_HISTORY", "0,1000,10000").split(","))
ROUNDS = int(os.environ.get("SHOAL_BENCH_ROUNDS", "5"))
SESSIONS_OF_A_RUN = 20
COMMANDS = (
    ("status",),
    ("runs",),
    ("resume",),
    ("clean", "--dry-run"),
    ("clean", "--older-than", "30d", "--dry-run"),
    ("run", "--task", "nothing", "--command", "true", "--sandbox", "none", "--network", "host"),
)


def main() -> None:
    """Measure each command at each size of history, and print one table."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    try:
        bare = measure([sys.executable, "-c", "pass"], folder)
        print(f"{'sessions':>9} {'command':<24} {'median ms':>10} {'ratio to python -c pass':>24}")
        for size in SIZES:
            repo = make_repository(folder / str(size))
            asyncio.run(write_history(StatePaths.of(repo), size))
            for words in COMMANDS[0 if size else -1 :]:
                took = measure([str(Path(sys.executable).with_name("shoal")), *words], repo)
                print(f"{size:>9} {' '.join(words[:3]):<24} {took * 1000:>10.0f} {took / bare:>24.1f}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_repository(path: Path) -> Path:
    """Make a repository with one commit."""
    path.mkdir()
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    for words in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "base")):
        subprocess.run(["git", *words], cwd=path, check=True)
    return path


async def write_history(paths: StatePaths, sessions: int) -> None:
    """Record finished runs through the ledger, with *sessions* sessions in all."""
    if sessions:
        async with open_ledger(store_at(paths)) as ledger:
            for number in range(sessions // SESSIONS_OF_A_RUN):
                await _write_run(ledger, f"bench-{number:05d}")


async def _write_run(ledger: Ledger, run: str) -> None:
    await ledger.append(
        RunStarted(run=run, name="bench", base="0" * 40, wall="none", workspace="overlay", owner=1, stages=("work",)),
        StepStarted(run=run, step="work", workers=SESSIONS_OF_A_RUN, on_failure="best_effort"),
        *(event for index in range(SESSIONS_OF_A_RUN) for event in _session(run, index)),
        StepEnded(run=run, step="work", status=Status.SUCCEEDED),
        RunEnded(run=run, status=Status.SUCCEEDED, duration_seconds=1.0, exit_code=0),
    )


def _session(run: str, index: int) -> tuple[SessionStarted, SessionEnded]:
    name = f"work-{run}-{index}"
    branch, workspace = f"agent/work/{run}{index}", f".shoal/workspaces/{run}/work/worker_{index}"
    result = WorkerResult(
        index=index,
        session=name,
        status=Status.SUCCEEDED,
        branch=branch,
        commit="1" * 40,
        files_changed=3,
        output="it is done\n" * 20,
        duration_seconds=1.0,
        attempts=1,
        workspace=workspace,
    )
    started = SessionStarted(
        run=run,
        step="work",
        session=name,
        index=index,
        branch=branch,
        base="0" * 40,
        strategy="overlay",
        workspace=workspace,
        prompt="do the work that was asked for, carefully",
    )
    return started, SessionEnded(run=run, step="work", session=name, result=result)


def measure(argv: list[str], folder: Path) -> float:
    """Give the median time of a command."""
    times = []
    # an installed program has bytecode: without it, most of the time would go into compiling
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir(), "shoal-bench-bytecode"))
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        subprocess.run(argv, cwd=folder, env=env, capture_output=True, check=False)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
