"""Agents that wait for room on the machine: it is said, it ends, and it can be cancelled."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.events import Recorded, Waiting
from shoal.steps import admission
from shoal.steps.admission import MIB, Free
from tests.acting import assert_nothing_left
from tests.runs.coordinating import LONG, coordinator, statuses


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> list[Free]:
    """A machine whose free memory the test decides."""
    now = [Free(memory_bytes=100 * MIB, memory_total_bytes=16384 * MIB, tasks=200, most_tasks=32768)]
    monkeypatch.setattr(admission, "free", lambda: now[0])
    return now


async def test_an_agent_waits_while_memory_is_short_says_so_once_and_goes_on(repo: Path, tight: list[Free]) -> None:
    said: list[str] = []
    short = asyncio.Event()

    def hear(recorded: Recorded) -> None:
        if isinstance(recorded.event, Waiting):
            said.append(recorded.event.reason)
            short.set()

    async with coordinator(repo, listen=hear) as task_run:
        doing = asyncio.create_task(task_run.run_agents(["true", "true"]))
        await asyncio.wait_for(short.wait(), LONG)
        tight[0] = replace(tight[0], memory_bytes=101 * MIB)
        await asyncio.sleep(1.2)
        active = dict(task_run.active_sessions)
        tight[0] = replace(tight[0], memory_bytes=8192 * MIB)
        results = await asyncio.wait_for(doing, LONG)

    assert active == {}
    assert statuses(results) == ["no_changes", "no_changes"]
    assert said[0] == "100 MB of memory are free, and 512 MB must stay free"
    assert said[1:] == [""]


async def test_who_waits_for_memory_can_be_cancelled(repo: Path, tight: list[Free]) -> None:
    async with coordinator(repo) as task_run:
        doing = asyncio.create_task(task_run.run_agents(["true"] * 3))
        await asyncio.wait((doing,), timeout=0.5)
        doing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(doing, LONG)

    assert_nothing_left(repo)


SHORT = """
import sys
from dataclasses import replace
from pathlib import Path
from shoal.steps import admission

look, roomy = admission.free, Path(sys.argv.pop(1))
admission.free = lambda: look() if roomy.exists() else replace(look(), memory_bytes=2**20)

from shoal.cli.main import main

main()
"""


@pytest.mark.parametrize("ends", ["by room", "by Ctrl-C"])
def test_the_command_line_says_that_it_waits_and_goes_on_or_stops(repo: Path, tmp_path: Path, ends: str) -> None:
    roomy = tmp_path / "roomy"
    argv = [sys.executable, "-c", SHORT, str(roomy), "run", "--task", "x", "--command", "true", "--repo", str(repo)]
    said = []

    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            said.append(line)
            if "waiting  1 MB of memory are free" in line:
                roomy.touch() if ends == "by room" else child.send_signal(signal.SIGINT)

    assert child.returncode == (0 if ends == "by room" else 130), said
    assert any("waiting  1 MB of memory are free" in line for line in said)
    assert any("continuing" in line for line in said) == (ends == "by room")
    assert_nothing_left(repo)
