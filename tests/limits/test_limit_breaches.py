"""Real hogs: the limits hold, the breach is named, nobody else is touched, and nothing is left."""

import asyncio
import ctypes
import os
import signal
import sys
from pathlib import Path

import pytest

from shoal.limits.choose import choose
from shoal.limits.kind import Enforcer
from shoal.limits.polling import GAPS, Polling
from shoal.model.limits import ResourceLimits
from tests.limits.limit_runs import (
    LIVE,
    MALLOC,
    MEMFD,
    ROOMY,
    SHM,
    bomb,
    is_alive,
    kernel,
    live,
    python,
    ran,
    running,
    shell,
    until,
)

PR_SET_DUMPABLE = 4
SMALL = ResourceLimits(memory_mb=64, cpu_percent=None, pids=40)


@pytest.fixture(params=LIVE)
def enforcer(request: pytest.FixtureRequest) -> Enforcer:
    return live(request.param)


def folders() -> list[Path]:
    """Everything of this process's in any hierarchy."""
    return _folders_of(os.getpid())


def _folders_of(pid: int) -> list[Path]:
    return [Path(top, name) for top, names, _ in os.walk("/sys/fs/cgroup") for name in names if f"-{pid}-" in name]


async def test_memory_is_held_and_named(enforcer: Enforcer) -> None:
    with enforcer.group("hog", SMALL) as group:
        async with running(group, python(MALLOC)):
            await until(group.breach)

        assert group.breach() == "memory"

    assert group.breach() == "memory"
    assert (group.usage().memory_peak_bytes or 0) > 60 << 20
    assert folders() == []


@pytest.mark.parametrize("script", [SHM, MEMFD], ids=["shm", "memfd"])
async def test_memory_without_a_process_is_memory_too(enforcer: Enforcer, script: str) -> None:
    with enforcer.group("hog", SMALL) as group:
        done = await ran(group, python(script))

    if enforcer.name == "polling":
        assert GAPS[1] in enforcer.gaps
    else:
        assert (done.exit.signal, group.breach()) == (signal.SIGKILL, "memory")


async def test_a_breach_is_named_although_the_main_process_lives_on() -> None:
    enforcer = kernel()
    script = f"{sys.executable} -I -S -c 'x = bytearray(300 << 20)'; echo survived with $?"

    if enforcer is not None:
        with enforcer.group("hog", SMALL) as group:
            done = await ran(group, shell(script))

        assert (done.stdout, group.breach()) == (b"survived with 137\n", "memory")


async def test_a_bomb_is_capped_and_named(enforcer: Enforcer) -> None:
    with enforcer.group("bomb", SMALL) as group:
        async with running(group, bomb(enforcer)):
            await until(group.breach)
            refused = group.usage().forks_refused
            members = group.pids()

        assert group.breach() == "pids"

    if enforcer.name != "polling":
        assert refused
        assert len(members) <= 40
    await until(lambda: not any(map(is_alive, members)))


async def test_cpu_is_throttled_not_ended(enforcer: Enforcer) -> None:
    spin = "import time; end = time.monotonic() + 1\nwhile time.monotonic() < end: pass\nprint(time.process_time())"

    with enforcer.group("spin", ResourceLimits(cpu_percent=25)) as group:
        done = await ran(group, python(spin))

    assert done.ok
    assert group.breach() is None
    assert float(done.stdout) < 0.5 or "cpu" not in enforcer.holds


async def test_nobody_is_left_at_the_end() -> None:
    """Neither who left the session, nor who ignores signals, nor who lost its parent."""
    enforcer = kernel()
    script = "trap '' TERM HUP; for i in 1 2 3; do setsid sh -c 'trap \"\" TERM; sleep 77; sleep 77' & done; wait"

    if enforcer is not None:
        with enforcer.group("left", ROOMY) as group:
            async with running(group, shell(script)):
                await until(lambda: len(group.pids()) >= 7)
                members = group.pids()

        assert [pid for pid in members if is_alive(pid)] == []
    assert folders() == []


async def test_one_group_does_not_feel_another(enforcer: Enforcer) -> None:
    with enforcer.group("bad", SMALL) as bad, enforcer.group("good", SMALL) as good:
        async with running(bad, bomb(enforcer)), running(good, shell("exec sleep 60")) as kept:
            await until(bad.breach)
            done = await ran(good, shell("for i in 1 2 3 4 5; do sleep 0 & done; wait; echo fine"))
            bad.kill()

            assert (bad.breach(), good.breach()) == ("pids", None)
            assert is_alive(kept.pid)
    assert done.stdout == b"fine\n" or enforcer.name == "polling"
    assert folders() == []


async def test_a_fleet_is_held_together() -> None:
    enforcer = kernel(fleet=ResourceLimits(memory_mb=64, cpu_percent=50, pids=40))
    wide = ResourceLimits(memory_mb=4096, cpu_percent=200, pids=1000)

    if enforcer is not None:
        with enforcer.group("one", wide) as one, enforcer.group("two", wide) as two:
            done = await ran(one, python("x = bytearray(300 << 20)"))

            assert (done.exit.signal, one.breach(), two.breach()) == (signal.SIGKILL, "memory", None)
    assert folders() == []


def test_what_a_dead_coordinator_left_is_swept() -> None:
    enforcer, other = kernel(), kernel()
    if enforcer is None or other is None:
        Polling().sweep()
        return
    child = os.fork()
    if child == 0:
        _leave_a_group()

    os.waitpid(child, 0)
    left = _folders_of(child)
    with other.group("alive", ROOMY) as alive:
        enforcer.sweep()

        assert left
        assert _folders_of(child) == []
        assert all(place.exists() for place in alive.places)


def _leave_a_group() -> None:
    enforcer = kernel()
    held = enforcer.group("left", ROOMY) if enforcer else None
    if held:
        held.__enter__()
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_ordinary_user_has_polling() -> None:
    """With a cap on processes that leaves room for others, and no right to write a control file."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(12345)
                os.setuid(12345)
                ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as any program is after an exec
            code = asyncio.run(_polled())
        finally:
            os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def _polled() -> int:
    enforcer = await choose()
    with enforcer.group("user", SMALL) as group:
        done = await ran(group, shell("ulimit -p 2>/dev/null || ulimit -u"))
    running_now = int(Path("/proc/loadavg").read_text().split("/")[1].split()[0])
    return 0 if enforcer.name == "polling" and 160 < int(done.stdout) < running_now + 5096 else 2
