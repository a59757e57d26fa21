"""Limits are enforced: an agent that exceeds one ends alone, and the limit is named."""

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path

from shoal.model.limits import ResourceLimits
from shoal.model.plan import Step
from shoal.model.results import RunReport
from shoal.model.status import Status
from tests.acting import assert_nothing_left, ran, shown, step

HOGS = {
    "memory": "python3 -c 'x = [bytearray(2**20) for _ in range(400)]; import time; time.sleep(60)'",
    "disk": "while :; do head -c 20M /dev/zero > fill.$(date +%N); sleep 0.1; done",
    "time": "sleep 600",
    "pids": "i=0; while [ $i -lt 400 ]; do sleep 30 & i=$((i+1)); done; while :; do (true); done; wait",
}
# Memory that belongs to no process. Polling does not see it: docs/limits.md says so.
UNMAPPED = {
    "tmp": "head -c 400M /dev/zero > /tmp/x; sleep 60",
    "shm": "head -c 400M /dev/zero > /dev/shm/x; sleep 60",
    "memfd": "python3 -c 'import os, time; f = os.memfd_create(\"x\"); any(os.write(f, bytes(2**20)) < 0 for _ in range(400)); time.sleep(60)'",
}
# 64 processes that spin for four seconds, then the seconds of CPU that they had.
SPIN = """exec python3 -c '
import os, resource, time
end = time.monotonic() + 4
for _ in range(64):
    if os.fork() == 0:
        while time.monotonic() < end: pass
        os._exit(0)
for _ in range(64): os.wait()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, flush=True)
time.sleep(600)'"""
TIGHT = ResourceLimits(memory_mb=128, disk_mb=100, time_seconds=8, pids=40, cpu_percent=None)
SPINNING = ResourceLimits(memory_mb=1024, time_seconds=12, pids=100, cpu_percent=50)


def limited(name: str, script: str, limits: ResourceLimits) -> Step:
    made = step(name, f"echo w > w; {script}")
    return replace(made, task=replace(made.task, limits=limits))


def is_kernels(report: RunReport) -> bool:
    """Say whether a control group holds the limits."""
    return not report.limits.startswith("polling")


async def test_hogs_end_alone_with_their_limit_named_and_the_good_ones_succeed(repo: Path) -> None:
    hogs = [limited(name, script, TIGHT) for name, script in HOGS.items()]
    # a memfd is an open file without a name, too
    hogs += [limited(name, script, replace(TIGHT, disk_mb=5120)) for name, script in UNMAPPED.items()]
    spinners = limited("spin", SPIN, SPINNING)
    good = [step(f"good-{number}", "sleep 3; echo g > g") for number in range(4)]

    report = await ran(repo, *hogs, spinners, *good)

    results = {one.step: one.worker_results[0] for one in report.steps}
    wanted = {name: name for name in HOGS} | dict.fromkeys(UNMAPPED, "memory" if is_kernels(report) else "time")
    for name, limit in (wanted | {"spin": "time"}).items():
        status = Status.TIMED_OUT if limit == "time" else Status.OVER_LIMIT
        assert (results[name].status, results[name].limit) == (status, limit), results[name]
        assert shown(repo, results[name], "w") == "w"
    assert all(results[f"good-{number}"].status is Status.SUCCEEDED for number in range(4))
    assert not is_kernels(report) or float(results["spin"].output) < 4 * 0.5 * 1.5
    assert "128 MB memory" in report.limits
    assert await nobody_left(repo)
    assert_nothing_left(repo)


async def nobody_left(repo: Path) -> bool:
    """See within five seconds that no process has its folder, or a mount, in the state of *repo*."""
    for _ in range(50):
        if not any(_is_of(process, str(repo / ".shoal")) for process in Path("/proc").glob("[0-9]*")):
            return True
        await asyncio.sleep(0.1)
    return False


def _is_of(process: Path, state: str) -> bool:
    with contextlib.suppress(OSError):
        if (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z":
            return False
        folder, mounts = os.readlink(process / "cwd"), (process / "mountinfo").read_text()
        return state in folder or f"{state}/boxes" in mounts
    return False


async def test_the_usual_limits_are_said(repo: Path) -> None:
    report = await ran(repo, step("work", "true"))

    assert "1024 MB memory, a fair share of cpu, 3600 s, 5120 MB disk, 1024 pids each" in report.limits
    name = report.limits.split(":")[0].split(" ")[0]
    assert name in (("cgroup2", "cgroup1") if os.geteuid() == 0 else ("cgroup2", "cgroup1", "systemd", "polling"))
    assert ("not exact" in report.limits) or name != "polling"
