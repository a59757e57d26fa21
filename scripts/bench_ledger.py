"""Measure two coordinators on one PostgreSQL ledger: python -m scripts.bench_ledger [SESSIONS]."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from shoal.model.events import RunEnded, RunStarted, SessionEnded, SessionStarted, StepStarted
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.model.store import StoreSettings
from shoal.store.choice import choose_store
from shoal.store.killed_runs import read_state
from shoal.store.ledger import Ledger, open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, store_at
from tests.postgres import Server

AT_ONCE = 50
LOOKS = 20


async def coordinate(folder: Path, run: str, sessions: int) -> None:
    """Record a run of many sessions, so many of them at once, as a coordinator does."""
    async with open_ledger(store_at(StatePaths.of(folder))) as ledger:
        await ledger.claim(run)
        await ledger.append(
            RunStarted(run=run, name=run, base="0" * 40, wall="none", workspace="overlay", owner=os.getpid())
        )
        await ledger.append(StepStarted(run=run, step="s", workers=sessions, on_failure="best_effort"))
        turns = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for number in range(sessions):
                group.create_task(record_session(ledger, turns, run, number))
        await ledger.append(RunEnded(run=run, status=Status.SUCCEEDED, duration_seconds=1.0))


async def record_session(ledger: Ledger, turns: asyncio.Semaphore, run: str, number: int) -> None:
    """Record one session."""
    session = f"{run}-{number}"
    start = SessionStarted(
        run=run,
        step="s",
        session=session,
        index=number,
        branch=session,
        base="0" * 40,
        strategy="overlay",
        workspace="/w",
    )
    async with turns:
        await ledger.append(start)
        result = WorkerResult(index=number, session=session, status=Status.SUCCEEDED)
        await ledger.append(SessionEnded(run=run, step="s", session=session, result=result))
        await ledger.forget(session)


def main() -> None:
    """Run two coordinators as processes, compare what is stored with what they wrote, and time `status`."""
    if len(sys.argv) == 4:
        asyncio.run(coordinate(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
        return
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    server = Server("max_connections=50")
    server.start()
    try:
        measure(server, sessions)
    finally:
        server.close()


def measure(server: Server, sessions: int) -> None:
    """Print what was found."""
    os.environ["LEDGER"] = server.url
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder, name) for name in ("one", "two")]
        for place in folders:
            subprocess.run(["git", "init", "-q", place], check=True)
            StatePaths.of(place).create()
            choose_store(StatePaths.of(place), StoreSettings(url_from="LEDGER", repository="bench"), os.environ)
        began = time.monotonic()
        words = [sys.executable, "-m", "scripts.bench_ledger"]
        each = str(sessions // 2)
        running = [subprocess.Popen([*words, str(place), f"run-{place.name}", each]) for place in folders]
        codes = [process.wait() for process in running]
        seconds = time.monotonic() - began
        found = Counter(type(entry.event).__name__ for entry in read_events(StatePaths.of(folders[0])))
        names = Counter(
            (type(entry.event).__name__, entry.event.session)
            for entry in read_events(StatePaths.of(folders[0]))
            if isinstance(entry.event, SessionStarted | SessionEnded)
        )
        doubled = sum(count - 1 for count in names.values())
        print(f"2 coordinators, {sessions} sessions: {seconds:.1f} s, exit codes {codes}, {dict(found)}")
        print(f"lost {2 * 2 * (sessions // 2) - len(names)}, doubled {doubled}")
        time_status(folders[1])


def time_status(folder: Path) -> None:
    """Time the state of both runs in this process, and the whole command in one of its own."""
    paths = StatePaths.of(folder)
    looks = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        state = read_state(paths)
        assert all(run.status.is_ended for run in state.runs.values())
        looks.append(time.perf_counter() - began)
    print(
        f"status, read and folded: {1000 * min(looks):.0f} ms at best, {1000 * sorted(looks)[LOOKS // 2]:.0f} ms median"
    )
    shoal, commands = Path(sys.executable).with_name("shoal"), []
    for _ in range(LOOKS):
        began = time.perf_counter()
        subprocess.run([shoal, "status"], cwd=folder, check=True, capture_output=True)
        commands.append(time.perf_counter() - began)
    print(f"`shoal status`: {1000 * min(commands):.0f} ms at best, {1000 * sorted(commands)[LOOKS // 2]:.0f} ms median")


if __name__ == "__main__":
    main()
