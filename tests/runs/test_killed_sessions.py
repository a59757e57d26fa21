"""Sandboxes that do not die with Shoal: its guard ends them, and where that is killed too, the next run does."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.limits.kind import kill_each
from shoal.runs.killed_sessions import find_sandboxes
from tests.acting import assert_nothing_left, ran, step
from tests.conftest import git
from tests.limits.limit_runs import until

# Without the flag by which a sandbox dies with its parent, and without control groups: as if an agent had taken the
# death signal off its sandbox's first process, on a host where an ordinary user has no group.
PROGRAM = """
import asyncio, sys
from pathlib import Path
from shoal.limits import choose
from shoal.sandboxes import bubblewrap
from tests.acting import ran, step

bubblewrap.FLAGS = tuple(flag for flag in bubblewrap.FLAGS if flag != "--die-with-parent")
for kind in [kind for kind in choose.KINDS if kind != "polling"]:
    del choose.KINDS[kind]

def told(recorded):
    print(type(recorded.event).__name__, getattr(recorded.event, "text", ""), flush=True)

asyncio.run(ran(Path(sys.argv[1]), step("work", "echo half > half; echo ready; sleep 3456"), listen=told))
"""


@pytest.fixture(autouse=True)
def nobody_left(repo: Path) -> Iterator[None]:
    """End what a test that fails leaves."""
    yield
    kill_each(lambda: find_sandboxes(repo / ".shoal"))


@contextlib.contextmanager
def working(repo: Path) -> Iterator[subprocess.Popen[str]]:
    """Have a Shoal of which an agent works, and kill it at the end."""
    here = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{here}:{here / 'src'}"}
    argv = [sys.executable, "-c", PROGRAM, str(repo)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=here) as process:
        assert process.stdout is not None
        assert "Output ready\n" in iter(process.stdout.readline, "")
        assert find_sandboxes(repo / ".shoal")
        yield process
        process.send_signal(signal.SIGKILL)


def watchers(coordinator: int) -> list[int]:
    """Find the guard of a Shoal."""
    children = Path(f"/proc/{coordinator}/task/{coordinator}/children").read_text().split()
    return [int(pid) for pid in children if b"watcher.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_the_guard_ends_a_sandbox_that_would_outlive_us(repo: Path) -> None:
    with working(repo):
        pass

    await until(lambda: not find_sandboxes(repo / ".shoal"))
    await ran(repo, step("next", "true"))
    assert_nothing_left(repo)


@pytest.mark.deep
async def test_the_next_run_ends_a_sandbox_that_outlived_the_guard(repo: Path) -> None:
    with working(repo) as process:
        (watcher,) = watchers(process.pid)
        os.kill(watcher, signal.SIGKILL)

    assert find_sandboxes(repo / ".shoal"), "nobody else ends it"
    await ran(repo, step("next", "true"))

    assert not find_sandboxes(repo / ".shoal")
    (branch,) = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent/work").splitlines()
    assert git(repo, "show", f"{branch}:half") == "half"
    assert_nothing_left(repo)
