"""An empty control group is reused for the next agent, and shows it nothing of the last one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.limits.cgroups import Cgroups
from shoal.limits.guard import open_guard
from shoal.limits.polling import Polling
from shoal.model.limits import ResourceLimits
from tests.limits.limit_runs import MEMFD, ROOMY, is_alive, kernel, on_files, python, ran, shell, until

# Files in memory outlive who wrote them, and stay charged to the group.
LEFT = """import os
fd = os.open('/dev/shm/shoal-left', os.O_CREAT | os.O_WRONLY); os.write(fd, bytes(20 << 20))"""

GUARDED = """
import asyncio, os, signal, sys
from shoal import proc
from shoal.limits.guard import open_guard
from tests.limits.limit_runs import ROOMY, kernel, shell

AGENT = "setsid sleep 3456 & echo $! $$; trap '' TERM; sleep 3456 & wait"

async def main():
    enforcer = kernel()
    async with open_guard(enforcer) as guard:
        with enforcer.group("agent", ROOMY) as group:
            forked = os.fork() if sys.argv[1:] else 0
            if sys.argv[1:] and not forked:  # holds all that we hold, and lives on
                signal.pause()
            print(guard.has_groups, forked, *enforcer.folders, flush=True)
            say = lambda _stream, chunk: print(chunk.decode(), end="", flush=True)
            async with proc.open_process(group.wrap(shell(AGENT)), sink=say) as process:
                await process.wait()

asyncio.run(main())
"""


@pytest.fixture(params=["version 2", *(["kernel"] if kernel() else [])])
def enforcer(request: pytest.FixtureRequest, tmp_path: Path) -> Cgroups:
    found = on_files(tmp_path) if request.param == "version 2" else kernel()
    assert found is not None
    return found


def test_a_used_group_shows_the_next_agent_nothing_of_the_last(enforcer: Cgroups) -> None:
    with enforcer.hold_shared():
        with enforcer.group("one", ROOMY) as one:
            pass
        with enforcer.group("two", ROOMY) as two:
            assert (two.name, two.breach(), two.pids()) == ("two", None, ())
            with enforcer.group("three", ROOMY) as three:
                assert not set(three.places) & set(two.places), "one for each that runs"
        with enforcer.group("other", ResourceLimits(memory_mb=64)) as other:
            assert not set(other.places) & {*one.places, *two.places, *three.places}, "with limits of its own"

    assert not any(place.exists() for group in (one, two, three, other) for place in group.places)
    assert not any(folder.exists() for folder in enforcer.folders)


if (real := kernel()) and real.name == "cgroup1":

    async def places(enforcer: Cgroups, name: str, script: str) -> tuple[Path, ...]:
        """Let one agent run and end, and say where it was."""
        with enforcer.group(name, ROOMY) as group:
            await ran(group, python(script))
        return group.places

    async def test_a_group_serves_again_and_counts_from_nothing() -> None:
        enforcer = kernel()
        assert enforcer is not None
        with enforcer.hold_shared():
            first = await places(enforcer, "first", "for _ in range(2_000_000): pass")
            with enforcer.group("next", ROOMY) as group:
                assert group.places == first
                assert (group.cpu_seconds() or 0) < 0.01
                assert (group.usage().memory_peak_bytes or 0) < 8 << 20

    @pytest.mark.parametrize("script", [LEFT, MEMFD.replace("300", "600"), "import os; os.fork() or os.pause()"])
    async def test_a_group_that_was_not_left_as_new_serves_nobody(script: str) -> None:
        enforcer = kernel()
        assert enforcer is not None
        try:
            with enforcer.hold_shared():
                first = await places(enforcer, "first", script)
                assert await places(enforcer, "next", "pass") != first
        finally:
            Path("/dev/shm/shoal-left").unlink(missing_ok=True)


if kernel():

    @pytest.mark.parametrize("forked", [(), ("fork",)], ids=["alone", "forked"])
    async def test_a_guard_ends_everybody_when_we_are_killed(forked: tuple[str, ...]) -> None:
        here = Path(__file__).parents[2]
        env = {**os.environ, "PYTHONPATH": f"{here}:{here / 'src'}"}
        argv = [sys.executable, "-c", GUARDED, *forked]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as process:
            assert process.stdout is not None
            has_groups, child, *folders = process.stdout.readline().split()
            pids = [int(pid) for pid in process.stdout.readline().split()]
            assert has_groups == "True"
            assert all(map(is_alive, pids))
            process.send_signal(signal.SIGKILL)

        try:
            await until(lambda: not any(map(is_alive, pids)))
            await until(lambda: not any(Path(folder).exists() for folder in folders))
        finally:
            if forked:
                os.kill(int(child), signal.SIGKILL)

    async def test_who_joins_too_late_never_runs(tmp_path: Path) -> None:
        enforcer = kernel()
        assert enforcer is not None
        with enforcer.group("agent", ROOMY) as group:
            late = group.wrap(shell(f"touch {tmp_path}/ran"))

        assert (await ran(group, late)).exit.code == 125
        assert not (tmp_path / "ran").exists()


async def test_no_guard_knows_groups_that_no_kernel_holds() -> None:
    async with open_guard(Polling()) as guard:
        assert not guard.has_groups


def test_an_agent_comes_back_while_another_has_its_former_group(enforcer: Cgroups) -> None:
    """What checks an agent's work runs under the agent's name, after it."""
    with enforcer.hold_shared():
        with enforcer.group("one", ROOMY):
            pass
        with enforcer.group("two", ROOMY) as two, enforcer.group("one", ROOMY) as again:
            assert again.name == "one"
            assert not set(again.places) & set(two.places)
