"""`disk: exact`: the kernel refuses the first excess byte, the breach is named, and no disk is left behind."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal import IsolatedAgentSession
from shoal.adapters.command import CommandAdapter
from shoal.errors import Broken, Unavailable
from shoal.limits.choose import choose
from shoal.model.limits import ResourceLimits
from shoal.model.plan import Plan
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.runs.run import run
from shoal.sessions.limit_watch import SessionBounds, wait_for_breach
from shoal.sessions.open_session import open_session
from shoal.sessions.worker import WorkerSpec
from shoal.store.fold import fold
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.workspaces.mount import list_mounts, unmount
from shoal.workspaces.quota import IMAGE, open_disk, open_disk_again, settle, unwritten_bytes
from tests.acting import assert_nothing_left, cleaned, ran, shown, step
from tests.cli.conftest import shoal_in
from tests.conftest import git, make_repo
from tests.workspaces.test_quota import assert_gone

MIB = 2**20
EXACT = ResourceLimits(disk_mb=20, disk="exact", cpu_percent=None)
FILL = "head -c 40M /dev/zero > fill"
YAML = """\
agents: {x: {adapter: command, command: [sh, -c, "echo w > w; head -c 40M /dev/zero > fill"]}}
steps: [{name: work, agent: x, prompt: go, limits: {disk_mb: 20, disk: exact}}]
"""
PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.acting import ran, step
from tests.sessions.test_disk_exact import EXACT

def told(recorded):
    print(type(recorded.event).__name__, getattr(recorded.event, "text", ""), flush=True)

asyncio.run(ran(Path(sys.argv[1]), step("work", sys.argv[3], 2, limits=EXACT), strategy=sys.argv[2], listen=told))
"""


async def test_without_a_wall_it_is_refused(repo: Path) -> None:
    with pytest.raises(Unavailable, match="without a sandbox an agent can write to every disk"):
        await ran(repo, step("work", "true", limits=EXACT), sandbox="none")
    assert_nothing_left(repo)


if os.geteuid() != 0:

    @pytest.mark.parametrize("strategy", ["auto", "worktree", "directory"])
    @pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
    async def test_an_ordinary_user_is_refused_before_anything_starts(repo: Path, strategy: str, sandbox: str) -> None:
        with pytest.raises(Unavailable, match=r"only root can mount .* set `disk: polled`"):
            await ran(repo, step("work", "true", limits=EXACT), strategy=strategy, sandbox=sandbox)

        assert fold(read_events(StatePaths.of(repo))).runs == {}
        assert_nothing_left(repo)

    def test_the_command_says_so_and_ends_with_5(repo: Path) -> None:
        (repo / "shoal.yaml").write_text(YAML)

        said = shoal_in(repo)("run", "shoal.yaml")

        assert said.code == 5
        assert "`disk: exact` is not available on this host: only root can mount" in said.err

else:

    @pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
    @pytest.mark.parametrize(
        "strategy", ["overlay", *(pytest.param(one, marks=pytest.mark.deep) for one in ("worktree", "directory"))]
    )
    async def test_the_kernel_says_when_it_is_full_and_the_neighbours_go_on(
        repo: Path, strategy: str, sandbox: str
    ) -> None:
        full = step("full", f"echo precious > w; {FILL}; wc -c < fill; exit 3", limits=EXACT)
        good = step("good", "head -c 10M /dev/zero > $TMPDIR/fine; echo g > g", 2, limits=EXACT)

        report = await ran(repo, full, good, strategy=strategy, sandbox=sandbox)

        over, *fine = [result for one in report.steps for result in one.worker_results]
        assert (over.status, over.limit, over.error) == (
            Status.OVER_LIMIT,
            "disk",
            f"exceeded its disk limit ({EXACT.disk_mb:g} MB)",
        )
        assert over.exit_code == 3
        assert 20 * MIB - 64 * 1024 < int(over.output) <= 20 * MIB
        assert shown(repo, over, "w") == "precious"
        assert [(one.status, one.limit) for one in fine] == [(Status.SUCCEEDED, None)] * 2
        assert "20 MB disk (exact)" in report.limits
        assert_nothing_left(repo)
        await assert_gone(repo)

    PLACES = {
        "workspace": ".",
        "home": "$HOME",
        "tmp": "$TMPDIR",
        "gitdir": "$(git rev-parse --git-dir)",
    }

    @pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
    async def test_everything_that_an_agent_can_write_counts_together(repo: Path, place: str) -> None:
        script = f"head -c 15M /dev/zero > {place}/one; head -c 15M /dev/zero > $HOME/two || df -k --output=avail ."
        report = await ran(repo, step("work", f"echo w > w; {script}", limits=EXACT))

        (result,) = report.steps[0].worker_results
        assert result.output.split() == ["Avail", "0"]
        assert (result.status, result.limit) == (Status.OVER_LIMIT, "disk"), "it said that all is well"
        assert shown(repo, result, "w") == "w"
        assert_nothing_left(repo)

    async def test_who_makes_room_again_has_met_nothing(repo: Path) -> None:
        report = await ran(repo, step("work", f"{FILL} || rm fill; echo w > w", limits=EXACT))

        (result,) = report.steps[0].worker_results
        assert (result.status, result.limit, result.error) == (Status.SUCCEEDED, None, None)
        assert shown(repo, result, "w") == "w"

    async def test_who_fails_with_room_left_has_failed(repo: Path) -> None:
        report = await ran(repo, step("work", "echo w > w; exit 4", limits=EXACT))

        (result,) = report.steps[0].worker_results
        assert (result.status, result.limit) == (Status.FAILED, None)

    async def test_a_full_disk_loses_none_of_the_agent_s_commits(repo: Path) -> None:
        script = f"echo c > c; git add c; git commit -qm mine; echo u > u; {FILL}; git add u; git commit -qm no"

        report = await ran(repo, step("work", script, limits=EXACT))

        (result,) = report.steps[0].worker_results
        assert (result.status, result.limit, result.raw) == (Status.OVER_LIMIT, "disk", None)
        assert (shown(repo, result, "c"), shown(repo, result, "u")) == ("c", "u")
        assert "mine" in git(repo, "log", "--format=%s", f"main..{result.branch}").splitlines()
        assert_nothing_left(repo)

    @pytest.mark.deep
    async def test_sixteen_at_once_leave_no_disk_behind(repo: Path) -> None:
        report = await ran(repo, step("work", "echo $SHOAL_WORKER_INDEX > w", 16, limits=EXACT))

        assert report.status is Status.SUCCEEDED
        assert_nothing_left(repo)
        await assert_gone(repo)

    async def test_a_cancelled_one_is_kept_and_gone(repo: Path) -> None:
        stop = asyncio.Event()
        script = f"echo w > w; {FILL}; echo ready; sleep 600"

        report = await ran(
            repo,
            step("work", script, limits=EXACT),
            stop=stop,
            listen=lambda one: stop.set() if getattr(one.event, "text", "") == "ready" else None,
        )

        (result,) = report.steps[0].worker_results
        assert result.status is Status.CANCELLED
        assert shown(repo, result, "w") == "w"
        assert_nothing_left(repo)
        await assert_gone(repo)

    async def test_who_does_nothing_about_a_full_disk_is_ended(tmp_path: Path) -> None:
        enforcer = await choose("polling")
        async with open_disk(tmp_path, 4 * MIB) as disk:
            settle(disk, 4 * MIB)
            limits = replace(EXACT, disk_mb=4)
            with enforcer.group("one", limits) as group:
                bounds = SessionBounds(
                    group=group, limits=limits, folders=(disk,), session_dir=tmp_path, disk=disk, full_seconds=0.5
                )
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(2):
                        await wait_for_breach(bounds, time.monotonic())
                assert bounds.find_reached_limit(failed=True) is None
                (disk / "fill").write_bytes(bytes(4 * MIB))

                async with asyncio.timeout(30):
                    assert await wait_for_breach(bounds, time.monotonic()) == "disk"
                assert bounds.find_reached_limit(failed=False) == "disk"

    @pytest.mark.deep
    async def test_an_agent_that_loops_on_a_full_disk_is_ended(repo: Path) -> None:
        script = f"echo w > w; {FILL}; while :; do echo more >> more; sleep 0.1; done"

        report = await ran(repo, step("work", script, limits=EXACT))

        (result,) = report.steps[0].worker_results
        assert (result.status, result.limit) == (Status.OVER_LIMIT, "disk")
        assert shown(repo, result, "w") == "w"
        assert_nothing_left(repo)

    def killed_with_full_disks(repo: Path, strategy: str) -> None:
        """Kill Shoal itself while two agents sit on full disks."""
        here = Path(__file__).parents[2]
        env = {**os.environ, "PYTHONPATH": f"{here}:{here / 'src'}"}
        script = (
            f"echo half > half; git add half; git commit -qm half; echo more > more; {FILL}; echo ready; sleep 3456"
        )
        argv = [sys.executable, "-c", PROGRAM, str(repo), strategy, script]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=here) as process:
            assert process.stdout is not None
            ready = 0
            for line in process.stdout:
                ready += line == "Output ready\n"
                if ready == 2:
                    break
            process.kill()
        assert [path.name for path in list_mounts(StatePaths.of(repo).session_dirs)] == ["disk", "disk"]

    def lost_work(repo: Path) -> list[WorkerResult]:
        """The results of the killed run, whose files are all held by branches."""
        lost, *_ = fold(read_events(StatePaths.of(repo))).runs.values()
        results = [one.result for one in lost.steps["work"].sessions.values() if one.result]
        assert [one.status for one in results] == [Status.INTERRUPTED] * 2
        for one in results:
            assert (shown(repo, one, "half"), shown(repo, one, "more")) == ("half", "more")
        return results

    @pytest.mark.deep
    @pytest.mark.parametrize("is_mounted", [True, False], ids=["still-mounted", "rebooted"])
    @pytest.mark.parametrize("strategy", ["overlay", "worktree", "directory"])
    async def test_the_work_of_a_killed_run_is_brought_in_by_the_next(
        repo: Path, strategy: str, is_mounted: bool
    ) -> None:
        killed_with_full_disks(repo, strategy)
        for place in () if is_mounted else list_mounts(StatePaths.of(repo).root):
            unmount(place)

        await ran(repo, step("next", "true"), strategy=strategy)

        assert [one.raw for one in lost_work(repo)] == [None, None]
        assert_nothing_left(repo)
        await assert_gone(repo)

    @pytest.mark.deep
    async def test_the_work_of_a_killed_run_is_brought_in_by_cleaning(repo: Path) -> None:
        killed_with_full_disks(repo, "overlay")

        done = await cleaned(repo)

        assert len(done.brought_in) == 2
        assert len(lost_work(repo)) == 2
        assert_nothing_left(repo)
        await assert_gone(repo)

    @pytest.mark.deep
    async def test_a_disk_whose_work_was_brought_in_already_just_goes(repo: Path) -> None:
        killed_with_full_disks(repo, "overlay")
        commit = git(repo, "commit-tree", "-p", "main", "-m", "sealed", "main^{tree}")
        (killed,) = fold(read_events(StatePaths.of(repo))).runs.values()
        for session in killed.steps["work"].sessions.values():
            git(repo, "update-ref", f"refs/heads/{session.branch}", commit)

        await ran(repo, step("next", "true"))

        assert_nothing_left(repo)
        await assert_gone(repo)

    async def test_files_that_are_to_stay_stay_in_an_image_that_nobody_holds(repo: Path) -> None:
        environ = {**os.environ, "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"}
        plan = Plan(name="t", steps=(step("work", "echo w > w", limits=EXACT),))

        await run(plan, RunRequest(folder=repo, environ=environ, cleanup=False), stop=asyncio.Event())

        (session_dir,) = StatePaths.of(repo).session_dirs.iterdir()
        assert (session_dir / IMAGE).is_file()
        await assert_gone(repo)
        async with open_disk_again(session_dir) as disk:
            assert [path.read_text() for path in disk.rglob("w")] == ["w\n"]
        done = await cleaned(repo)
        assert session_dir in [one.path for one in done.gone]
        assert not session_dir.exists()

    def test_a_held_session_has_one_disk_for_all_its_commands(repo: Path) -> None:
        with IsolatedAgentSession("held", repo, limits=EXACT) as session:
            first = session.run("head -c 15M /dev/zero > one")
            second = session.run("head -c 15M /dev/zero > two")
            third = session.run("rm one two; echo w > w")
            with pytest.raises(OSError, match="No space left"):
                (session.workspace / "mine").write_bytes(bytes(30 * MIB))
            (session.workspace / "mine").unlink()

        assert [one.limit for one in (first, second, third)] == [None, "disk", None]
        assert session.result is not None
        assert shown(repo, session.result, "w") == "w"
        assert_nothing_left(repo)

    def test_the_command_names_the_limit(repo: Path) -> None:
        (repo / "shoal.yaml").write_text(YAML)

        said = shoal_in(repo)("run", "shoal.yaml", "--json")

        assert said.code == 1, said.err
        (worker,) = json.loads(said.out)["steps"][0]["worker_results"]
        assert (worker["status"], worker["limit"]) == ("over_limit", "disk")
        assert git(repo, "show", f"{worker['branch']}:w") == "w"

    @contextlib.contextmanager
    def small_disk(folder: Path, free_mib: int) -> Iterator[Path]:
        """A host's disk of 400 MiB, whose floor is 20 MiB, with so much free."""
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", folder], check=True)
        try:
            repo = make_repo(folder / "repo")
            there = os.statvfs(folder)
            with (folder / "others").open("wb") as others:
                os.posix_fallocate(others.fileno(), 0, there.f_bavail * there.f_frsize - free_mib * MIB)
            yield repo
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
            shutil.rmtree(folder, ignore_errors=True)

    @pytest.mark.parametrize("way", ["exact", "polled"])
    async def test_agents_that_would_take_the_last_of_the_host_s_disk_are_ended(tmp_path: Path, way: str) -> None:
        limits = replace(EXACT, disk_mb=300, disk=way)
        script = "echo w > w; while :; do head -c 1M /dev/urandom > $HOME/$(date +%N); sleep 0.2; done"
        with small_disk(tmp_path / "disk", free_mib=50) as repo:
            left: list[int] = []
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(noted(repo, left))
                report = await ran(repo, step("work", script, 2, limits=limits))
                looking.cancel()

            results = report.steps[0].worker_results
            assert min(left) > 0, "what was written and has not arrived yet counts too"
            assert [(one.status, one.limit) for one in results] == [(Status.OVER_LIMIT, "disk")] * 2
            assert all(shown(repo, one, "w") == "w" for one in results)
            assert_nothing_left(repo)

    async def noted(repo: Path, left: list[int]) -> None:
        """Note ten times a second what will be left of the host's disk."""
        while True:
            there = os.statvfs(repo)
            left.append(there.f_bavail * there.f_frsize - unwritten_bytes(StatePaths.of(repo).session_dirs))
            await asyncio.sleep(0.1)

    async def test_no_agent_starts_below_the_floor(tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", free_mib=15) as repo:
            with pytest.raises(Broken, match=r"only .* MB are free on the disk of .*, and 20 MB must stay free"):
                async with IsolatedAgentSession("held", repo):
                    pass
            async with open_run(RunRequest(folder=repo, environ=os.environ)) as opened:
                context = opened.context
                task = step("work", "true").task
                job = WorkerSpec(step="work", index=0, count=1, task=task, adapter=CommandAdapter())
                with pytest.raises(Broken, match="20 MB must stay free; free some space, or run `shoal clean`"):
                    async with open_session(context, job):
                        pass
            assert_nothing_left(repo)
