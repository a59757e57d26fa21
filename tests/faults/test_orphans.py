"""What a kill leaves is gone ten seconds after the next start, and a reboot is a kill that leaves only files."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from shoal.limits.kind import kill_each
from shoal.model.status import Status
from shoal.store.killed_runs import read_state
from shoal.workspaces.mount import unmount
from tests.cli.conftest import SHOAL, environment
from tests.faults.invariants import Untouched, find_violations, processes_of
from tests.faults.scene import Scene, make_scene
from tests.outside import mounts_below, wait_until

RECONCILE_SECONDS = 10
WAIT_SECONDS = 60
# Of each agent one process leaves its group and session, and one is stopped: neither hears of any end.
LINGER = """\
steps:
  - name: many
    agent: work
    concurrency: 2
    on_failure: best_effort
    prompt: "[ -e $OUTSIDE/go ] || { setsid -f sleep 3456; sh -c 'kill -STOP $$' & wait; }"
"""
LINGERING = 4
IS_ROOT = os.geteuid() == 0
"""Only root's agents have mounts on the host and control groups."""


def find_lingering(scene: Scene) -> list[int]:
    """List what the agents started, and what of them left their groups."""
    return [pid for pid, what in processes_of(scene.repo) if what.startswith(("sleep ", "sh -c kill "))]


@pytest.fixture(autouse=True)
def end_all(tmp_path: Path) -> Iterator[None]:
    """End what a test that fails leaves."""
    yield
    kill_each(lambda: [pid for pid, _ in processes_of(tmp_path)])
    for place in mounts_below(tmp_path):
        unmount(place)


def groups(fleet: str) -> list[Path]:
    """List the control groups whose names have *fleet*; others come and go meanwhile."""
    walk = os.walk("/sys/fs/cgroup")
    return [Path(top, name) for top, names, _ in walk for name in names if name.startswith("shoal-") and fleet in name]


def kill_all_that_watch(process: BaseProcess) -> None:
    """Kill a coordinator together with the guard that would end its agents."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    guards = [int(pid) for pid in children if b"watcher.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(guards) == 1
    os.kill(guards[0], signal.SIGKILL)
    process.kill()
    process.join()


def start_and_kill(scene: Scene) -> str:
    """Kill a run while all its agents linger; return what the names of its control groups contain."""
    launch = scene.launch(*scene.words)
    process = launch.start()
    wait_until(lambda: len(find_lingering(scene)) == LINGERING)
    kill_all_that_watch(process)
    scene.note_end(launch, -9)
    return f"-{process.pid}-"


def test_agents_mounts_groups_and_workspaces_are_gone_ten_seconds_after_the_next_start(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene", LINGER)
    before = Untouched.of(scene.repo)
    fleet = start_and_kill(scene)
    left = (mounts_below(scene.repo), groups(fleet))

    began = time.monotonic()
    assert scene.start("clean") == 0, scene.said()
    took = time.monotonic() - began

    assert [bool(found) for found in left] == [IS_ROOT, IS_ROOT], left
    assert took < RECONCILE_SECONDS
    assert (dict(processes_of(scene.repo)), mounts_below(scene.repo)) == ({}, set())
    assert groups(fleet) == []
    assert list((scene.repo / ".shoal/boxes").iterdir()) == []
    (scene.outside / "go").touch()
    assert scene.settle() == 0, scene.said()
    assert find_violations(scene, before) == []


def test_agents_end_without_their_coordinator_and_its_guard(tmp_path: Path) -> None:
    """Their sandboxes end with the process that started them; nobody has to clean up for that."""
    scene = make_scene(tmp_path / "scene", LINGER)
    start_and_kill(scene)

    wait_until(lambda: not find_lingering(scene))


def in_boot(boot: str, tmp: Path, *words: str | Path) -> list[str | Path]:
    """Make a command run with processes, mounts and an id of a boot of their own, which end together."""
    boot_id = tmp / f"boot-{boot}"
    boot_id.write_text(f"{boot}-0000-4000-8000-000000000000\n")
    begin = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    rights = () if IS_ROOT else ("--map-root-user",)
    apart = ("unshare", *rights, "--pid", "--fork", "--kill-child", "--mount", "--mount-proc")
    return [*apart, "sh", "-c", begin, boot_id, *words]


def remove_groups(boot: str) -> bool:
    """Remove the control groups of a boot that is over, as the kernel would; its last processes may still be dying."""
    left = groups(f"-{boot}-")
    for group in left:
        with contextlib.suppress(OSError):
            for place in (*(entry for entry in group.iterdir() if entry.is_dir()), group):
                place.rmdir()
    return not left


def test_a_reboot_interrupts_all_runs_and_loses_nothing_of_them(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene", LINGER)
    before = Untouched.of(scene.repo)
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    env = environment(TMPDIR=str(tmp))
    trial = scene.paths.session_dirs / "trial-shoal-00000001-1-2-3-00ff"
    trial.mkdir(parents=True)

    boots = (secrets.token_hex(4), secrets.token_hex(4))
    first = in_boot(boots[0], scene.outside, SHOAL, *scene.words)
    with subprocess.Popen(first, cwd=scene.repo, env=env, stdout=subprocess.DEVNULL) as machine:
        wait_until(lambda: len(find_lingering(scene)) == LINGERING)
        machine.kill()
    wait_until(lambda: not list(processes_of(tmp_path)))
    wait_until(lambda: remove_groups(boots[0]))
    scene.running_at_kills += 2
    shutil.rmtree(tmp)
    tmp.mkdir()
    statuses = {run.status for run in read_state(scene.paths).runs.values()}
    (scene.outside / "go").touch()
    second = in_boot(boots[1], scene.outside, SHOAL, "resume")
    done = subprocess.run(second, cwd=scene.repo, env=env, capture_output=True, text=True, timeout=100, check=False)

    assert statuses == {Status.INTERRUPTED}
    assert done.returncode == 0, done.stdout + done.stderr
    assert not trial.exists()
    assert scene.starts() == {"many-0": 2, "many-1": 2}
    assert scene.start("clean") == 0
    assert find_violations(scene, before) == []
