"""Measure what nodes cost: trivial sessions per second here and on nodes, and how long one takes to start."""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shoal.model.agent import AgentSpec
from shoal.model.events import AgentStarted, Recorded, SessionStarted
from shoal.model.nodes import parse_nodes
from shoal.model.plan import Plan, Step
from shoal.model.resolved_task import ResolvedTask
from shoal.runs.request import RunRequest
from shoal.runs.run import run

FILES = 200


def make_repository(folder: Path) -> None:
    """Make a repository of some files."""
    folder.mkdir()
    for number in range(FILES):
        (folder / f"f{number}.txt").write_text(f"line {number}\n" * 20)
    who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), (*who, "commit", "-qm", "base")):
        subprocess.run(["git", "-C", str(folder), *words], check=True)


async def measure(folder: Path, nodes: str, sessions: int, at_once: int) -> tuple[float, float]:
    """Return sessions per second, and the median of the seconds from a session's start to its agent's."""
    starts: dict[str, float] = {}
    waits: list[float] = []
    times: list[float] = []

    def listen(recorded: Recorded) -> None:
        match recorded.event:
            case SessionStarted(session=session):
                starts[session] = time.monotonic()
                times.append(starts[session])
            case AgentStarted(session=session):
                waits.append(time.monotonic() - starts[session])

    agent = AgentSpec(name="a", adapter="command", command=("/bin/sh", "-c", "echo x > made.txt"))
    step = Step(name="s", workers=sessions, task=ResolvedTask(name="s", prompt="x", agent=agent))
    plan = Plan(name="bench", steps=(step,), max_concurrent=at_once, nodes=parse_nodes(nodes) if nodes else ())
    report = await run(plan, RunRequest(folder=folder, environ=os.environ), stop=asyncio.Event(), listen=listen)
    took = time.monotonic() - times[0]
    assert len(report.workers) == sessions
    return sessions / took, statistics.median(waits)


def main(sessions: int = 60, at_once: int = 4) -> None:
    """Measure this machine, one node and two, each at one session at a time, and then several."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_STATE_HOME"] = f"{scratch}/state"
        folder = Path(scratch, "repo")
        make_repository(folder)
        for nodes in ("", "pipe:1", f"pipe:{at_once}", f"pipe:{at_once // 2},pipe:{at_once // 2}"):
            count, parallel = (12, 1) if nodes == "pipe:1" else (sessions, at_once)
            rate, wait = asyncio.run(measure(folder, nodes, count, parallel))
            print(
                f"{nodes or 'here':16} {parallel} at once: {rate:6.1f} sessions/s, agent starts after {wait * 1000:5.0f} ms"
            )
        rate, wait = asyncio.run(measure(folder, "", 12, 1))
        print(f"{'here':16} 1 at once: {rate:6.1f} sessions/s, agent starts after {wait * 1000:5.0f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
