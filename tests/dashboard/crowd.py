"""A run of very many agents that only writes its ledger: 200 agents, 100,000 events, and then one a second of each.

`python -m tests.dashboard.crowd FOLDER` prints `ready`, answers each line with the seconds of CPU it has used, and ends
with its stdin.
"""

import asyncio
import itertools
import sys
import time
from pathlib import Path

from shoal.model.activity import Act
from shoal.model.events import (
    AgentActed,
    AgentStarted,
    ClientHeard,
    Event,
    Output,
    OverlapSeen,
    ResourcesSampled,
    RunStarted,
    SessionEnded,
    SessionStarted,
    StepStarted,
)
from shoal.model.merge import Overlap
from shoal.model.resources import ResourceSample
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.store.ledger import Ledger, open_ledger
from shoal.store.lock import hold_lock
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at

RUN = "crowd-20260714-3f9c"
AGENTS = 200
EVENTS = 100_000
ENDED = 60
SESSIONS = [f"crowd-{number:06x}" for number in range(AGENTS)]


def activity(session: str, number: int) -> Event:
    """Give the event of that *number* in the log of a session: calls and their results, output, usage, samples."""
    match number % 5:
        case 0:
            call = f"c{number}"
            return AgentActed(
                run=RUN, session=session, act=Act.TOOL, tool="Bash", text=f"pytest -q tests/part_{number}", call=call
            )
        case 1:
            call, ok = f"c{number - 1}", number % 35 != 1
            return AgentActed(run=RUN, session=session, act=Act.RESULT, text="12 passed in 0.42s", call=call, ok=ok)
        case 2:
            return Output(
                run=RUN, session=session, stream="stdout", text=f"I look at part {number} of the parser now.\n"
            )
        case 3:
            usage = {"input_tokens": 900.0 * number, "output_tokens": 40.0 * number, "cost_usd": 0.004 * number}
            return ClientHeard(run=RUN, session=session, client_session="c", usage=usage)
        case _:
            sample = ResourceSample(memory_mb=100.0 + number % 60, cpu_seconds=number / 10, disk_mb=number / 100)
            return ResourcesSampled(run=RUN, session=session, sample=sample)


def beginning(index: int, session: str) -> SessionStarted:
    return SessionStarted(
        run=RUN,
        step="crowd",
        session=session,
        index=index,
        branch=f"agent/crowd/{index:06x}",
        base="0" * 40,
        strategy="overlay",
        workspace="/nowhere",
        prompt=f"fix part {index} of the parser, and say what you did",
        agent="claude",
        adapter="claude",
        takes_messages=True,
    )


def end(index: int, session: str) -> SessionEnded:
    status = Status.FAILED if index % 10 == 9 else Status.SUCCEEDED
    error = "it exited with 1: AssertionError" if status is Status.FAILED else None
    result = WorkerResult(
        index=index,
        session=session,
        status=status,
        branch=f"agent/crowd/{index:06x}",
        commit="0" * 40,
        files_changed=3,
        duration_seconds=30.0 + index,
        error=error,
        resources={"memory_peak_mb": 150.0},
    )
    return SessionEnded(run=RUN, step="crowd", session=session, result=result)


async def fill(ledger: Ledger) -> None:
    """Record a run with all its past."""
    started = RunStarted(
        run=RUN, name="crowd", base="0" * 40, wall="bubblewrap", workspace="overlay", owner=1, stages=("crowd",)
    )
    await ledger.append(started, StepStarted(run=RUN, step="crowd", workers=AGENTS + 40, on_failure="best_effort"))
    for index, session in enumerate(SESSIONS):
        await ledger.append(beginning(index, session))
        ledger.note(AgentStarted(run=RUN, session=session, pid=1000 + index))
        for number in range(EVENTS // AGENTS - 1):
            ledger.note(activity(session, number))
        await ledger.flush(session)
    await ledger.append(*(end(index, session) for index, session in enumerate(SESSIONS[:ENDED])))
    pairs = itertools.islice(itertools.combinations(SESSIONS[:ENDED], 2), 400)
    overlaps = (Overlap(one=left, other=right, paths=("src/parser.py",), files=1) for left, right in pairs)
    await ledger.append(*(OverlapSeen(run=RUN, overlap=overlap) for overlap in overlaps))


async def go_on(ledger: Ledger) -> None:
    """Let each agent at work do one thing a second."""
    for number in itertools.count(EVENTS // AGENTS):
        for session in SESSIONS[ENDED:]:
            ledger.note(activity(session, number))
            await asyncio.sleep(1 / AGENTS)


async def answer() -> None:
    while await asyncio.to_thread(sys.stdin.readline):
        print(time.process_time(), flush=True)


async def main(folder: Path) -> None:
    paths = StatePaths.of(folder)
    paths.create()
    async with (
        open_ledger(store_at(paths)) as ledger,
        hold_lock(paths.run_lock(RUN), timeout=5),
        asyncio.TaskGroup() as group,
    ):
        await fill(ledger)
        print("ready", flush=True)
        going = group.create_task(go_on(ledger))
        await answer()
        going.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
