"""Stopped processes: all of them, while they are counted, and none that was stopped before."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from shoal.limits.polling import list_descendants
from shoal.sessions.disk_use import hold_stopped

# Threads and a child that count in memory that we see too, and children that come and go.
BUSY = """
import mmap, os, threading
with open("counts", "r+b") as file: counts = mmap.mmap(file.fileno(), 3)
def count(place):
    while True: counts[place] = (counts[place] + 1) % 256
for place in (0, 1): threading.Thread(target=count, args=(place,)).start()
if os.fork() == 0: count(2)
print("ready", flush=True)
while True:
    if (pid := os.fork()) == 0: os._exit(0)
    os.waitpid(pid, 0)
"""


def members(pid: int) -> list[int]:
    return [seen.pid for seen in list_descendants([pid])]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_nobody_runs_while_all_stand_still_and_all_go_on(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    counts.write_bytes(bytes(3))
    running = subprocess.Popen([sys.executable, "-c", BUSY], cwd=tmp_path, stdout=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.readline()
    try:
        async with hold_stopped(lambda: members(running.pid)) as is_still:
            first = counts.read_bytes()
            seen = set()
            for _ in range(20):
                await asyncio.sleep(0.005)
                seen.add(counts.read_bytes())
        async with asyncio.timeout(60):
            while any(now == before for now, before in zip(counts.read_bytes(), first, strict=True)):
                await asyncio.sleep(0.001)
    finally:
        for pid in members(running.pid):
            os.kill(pid, signal.SIGKILL)
        running.communicate()

    assert (is_still, seen) == (True, {first})


async def test_a_process_that_had_stopped_before_stays_so() -> None:
    sleeps = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    pids = [sleep.pid for sleep in sleeps]
    try:
        os.kill(pids[0], signal.SIGSTOP)
        os.waitpid(pids[0], os.WUNTRACED)
        async with hold_stopped(lambda: pids) as is_still:
            inside = [state(pid) for pid in pids]
        async with asyncio.timeout(20):
            while state(pids[1]) == "T":
                await asyncio.sleep(0.005)
        after = state(pids[0])
    finally:
        for sleep in sleeps:
            sleep.kill()
            sleep.wait()

    assert (is_still, inside, after) == (True, ["T", "T"], "T")
