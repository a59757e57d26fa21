"""Limits bind: who passes one ends alone, and the limit is named."""

import os
from dataclasses import replace
from pathlib import Path

from shoal.model.limits import ResourceLimits
from shoal.model.status import Status
from shoal.model.task import Step
from tests.acting import assert_nothing_left, ran, shown, step

HOGS = {
    "memory": "python3 -c 'x = [bytearray(2**20) for _ in range(400)]; import time; time.sleep(60)'",
    "disk": "while :; do head -c 20M /dev/zero > fill.$(date +%N); sleep 0.1; done",
    "time": "sleep 600",
    "pids": "i=0; while [ $i -lt 400 ]; do sleep 30 & i=$((i+1)); done; while :; do (true); done; wait",
}
TIGHT = ResourceLimits(memory_mb=128, disk_mb=100, time_seconds=8, pids=40, cpu_percent=None)


def limited(name: str, script: str, limits: ResourceLimits) -> Step:
    made = step(name, f"echo w > w; {script}")
    return replace(made, task=replace(made.task, limits=limits))


async def test_hogs_end_alone_with_their_limit_named_and_the_good_ones_succeed(repo: Path) -> None:
    hogs = [limited(name, script, TIGHT) for name, script in HOGS.items()]
    good = [step(f"good-{number}", "sleep 3; echo g > g") for number in range(2)]

    report = await ran(repo, *hogs, *good)

    results = {one.step: one.worker_results[0] for one in report.steps}
    for name in HOGS:
        wanted = Status.TIMED_OUT if name == "time" else Status.OVER_LIMIT
        assert (results[name].status, results[name].limit) == (wanted, name), results[name]
        assert shown(repo, results[name], "w") == "w"
    assert all(results[f"good-{number}"].status is Status.SUCCEEDED for number in range(2))
    assert "128 MB memory" in report.limits
    assert_nothing_left(repo)


async def test_the_usual_limits_are_said(repo: Path) -> None:
    report = await ran(repo, step("work", "true"))

    assert "1024 MB memory, a fair share of cpu, 3600 s, 5120 MB disk, 1024 pids each" in report.limits
    name = report.limits.split(":")[0].split(" ")[0]
    assert name in (("cgroup2", "cgroup1") if os.geteuid() == 0 else ("cgroup2", "cgroup1", "systemd", "polling"))
    assert ("not exact" in report.limits) or name != "polling"
