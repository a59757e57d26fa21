"""Faults that lose nothing, and that do not affect others."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import IsolatedAgentSession
from shoal.errors import BadRepository, ShoalError
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.sessions import keep_work
from shoal.store.fold import fold
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from tests.acting import StopAtWait, assert_nothing_left, paths_in, ran, shown, step, worked
from tests.conftest import git, make_repo
from tests.runs.test_recovery import killed_while_working


@pytest.mark.parametrize("name", ["game.pack", "pack", "webpack"])
async def test_a_large_file_of_any_name_costs_nothing_else_and_stays_on_disk(repo: Path, name: str) -> None:
    result = await worked(repo, f"echo precious > work.txt; truncate -s 101M {name}")

    assert result.status is Status.FAILED
    assert name in (result.error or "")
    assert shown(repo, result, "work.txt") == "precious"
    assert result.unkept == (name,)
    assert result.raw is not None
    assert (Path(result.raw) / "upper" / name).stat().st_size == 101 * 2**20


async def test_files_below_a_submodule_are_named_and_stay(repo: Path, tmp_path: Path) -> None:
    other = make_repo(tmp_path / "other")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(repo, "commit", "-qm", "submodule")

    result = await worked(repo, "echo precious > sub/new.txt")

    assert result.unkept == ("sub/",)
    assert result.raw is not None
    assert (Path(result.raw) / "upper/sub/new.txt").read_text() == "precious\n"


async def test_every_stash_is_kept(repo: Path) -> None:
    script = "for n in 1 2 3; do echo $n > README.md; git stash -q; done"

    result = await worked(repo, script)

    texts = {git(repo, "show", f"{ref}:README.md") for ref in result.kept_refs}
    assert {"1", "2", "3"} <= texts


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf $HOME/../git",
        "mv $HOME/../git $HOME/../other; ln -s /proc/self $HOME/../git",
        "rm -rf $HOME/.. ; true",
        "chmod 000 $(git rev-parse --git-dir)/objects",
        "chmod 000 $HOME/.. ; chmod 000 .",
    ],
)
async def test_one_agents_trouble_never_ends_another(repo: Path, script: str) -> None:
    report = await ran(repo, step("bad", f"echo w > w; {script}"), step("good", "sleep 0.5; echo g > g"))

    bad, good = (one.worker_results[0] for one in report.steps)
    assert good.status is Status.SUCCEEDED
    assert shown(repo, good, "g") == "g"
    assert _kept_or_on_disk(repo, bad), bad
    assert all(run.status.is_ended for run in fold(read_events(StatePaths.of(repo))).runs.values())


def _kept_or_on_disk(repo: Path, result: WorkerResult) -> bool:
    if result.branch is not None:
        return shown(repo, result, "w") == "w"
    return result.raw is not None and (Path(result.raw) / "upper/w").exists()


@pytest.mark.deep
async def test_two_sweeps_at_once_write_one_end(repo: Path) -> None:
    killed_while_working(repo, "overlay")

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(ran(repo, step(f"next-{number}", "true")))

    lost = next(iter(fold(read_events(StatePaths.of(repo))).runs.values()))
    ends = [one for one in read_events(StatePaths.of(repo), lost.run) if type(one.event).__name__ == "SessionEnded"]
    assert len(ends) == 2
    for session in lost.steps["work"].sessions.values():
        assert session.result is not None
        assert git(repo, "show", f"{session.result.branch}:half") == "half"
        assert git(repo, "show", f"{session.result.branch}:README.md") == "scratch"
    assert_nothing_left(repo)


HOST_COMMITS = """
import os, signal, subprocess, sys
from pathlib import Path
from shoal import IsolatedAgentSession
from tests.conftest import git

with IsolatedAgentSession("agent-1", sys.argv[1]) as session:
    (session.workspace / "one.txt").write_text("one")
    git(session.workspace, "add", "one.txt")
    git(session.workspace, "commit", "-qm", "by the host")
    (session.workspace / "two.txt").write_text("two")
    os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_commit_of_the_hosts_is_not_taken_for_a_seal(repo: Path) -> None:
    here = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{here}:{here / 'src'}"}
    done = subprocess.run([sys.executable, "-c", HOST_COMMITS, str(repo)], env=env, cwd=here, check=False)
    assert done.returncode == -signal.SIGKILL

    await ran(repo, step("next", "true"))

    (branch,) = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent/agent-1").splitlines()
    assert git(repo, "show", f"{branch}:two.txt") == "two"
    assert "by the host" in git(repo, "log", "--format=%s", branch)
    assert_nothing_left(repo)


@pytest.mark.deep
async def test_a_replaced_folder_is_seen_by_whoever_sweeps(repo: Path) -> None:
    program = "rm -r d0; mkdir d0; echo n > d0/n; echo ready; sleep 3456"
    killed_while_working(repo, "overlay", program)

    await ran(repo, step("next", "true"), strategy="worktree")

    lost = next(iter(fold(read_events(StatePaths.of(repo))).runs.values()))
    for session in lost.steps["work"].sessions.values():
        assert session.result is not None
        assert paths_in(repo, session.result) == {"README.md", "d0/n"}


async def test_a_link_left_by_a_weaker_wall_reaches_nothing(tmp_path: Path) -> None:
    repo, canary = make_repo(tmp_path / "large", 600), tmp_path / "canary"
    await worked(repo, f"rm .git; ln -s /oldroot{canary} .git", strategy="worktree", sandbox="landlock")

    result = await worked(repo, "echo w > w", strategy="worktree")

    assert shown(repo, result, "w") == "w"
    assert not canary.exists()


@pytest.mark.deep
async def test_more_agents_than_open_files_wait_for_their_turn(repo: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = (
        "import asyncio, resource, sys; from pathlib import Path; from tests.acting import ran, step\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (140, 140))\n"
        "report = asyncio.run(ran(Path(sys.argv[1]), step('many', 'echo w > w', 12)))\n"
        "print(report.status.value)"
    )
    here = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{here}:{here / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(repo)], env=env, cwd=here, capture_output=True, text=True, check=False
    )

    assert done.stdout.strip() == "succeeded", done.stderr
    assert (soft, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)


async def test_a_branch_where_a_steps_branches_go_is_refused_at_start(repo: Path) -> None:
    git(repo, "branch", "agent/work")

    with pytest.raises(BadRepository, match="rename it"):
        await worked(repo, "echo w > w")


async def test_a_hundred_thousand_short_lines_are_no_burden(repo: Path) -> None:
    result = await worked(repo, "seq 1 100000")

    state = StatePaths.of(repo)
    assert result.output.endswith("99999\n100000\n")
    assert state.session_db(result.session).stat().st_size < 3_000_000


if os.geteuid() == 0:  # only root can make the disk that is to be filled

    @pytest.mark.parametrize("left_kib", [0, *(pytest.param(left, marks=pytest.mark.deep) for left in (60, 200, 2000))])
    async def test_a_full_disk_loses_nothing(tmp_path: Path, left_kib: int) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], check=True)
        try:
            repo = make_repo(disk / "repo", 50)
            fill = f"head -c $(( $(df --output=avail -k . | tail -1) - {left_kib} ))K /dev/zero > fill"
            result: WorkerResult | None = None
            impatient = StopAtWait()
            with contextlib.suppress(ShoalError):
                script = f"echo precious > w.txt; {fill}; rm -f none"
                result = await worked(repo, script, stop=impatient.stop, listen=impatient.listen)
            there = [path for path in (repo / ".shoal").rglob("w.txt") if path.is_file()]
            assert there or (result and result.branch and shown(repo, result, "w.txt") == "precious"), result
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
            shutil.rmtree(disk, ignore_errors=True)


def test_a_session_that_is_misused_says_so(repo: Path) -> None:
    session = IsolatedAgentSession("agent-1", repo)
    with pytest.raises(Exception, match="not open"):
        session.run("true")
    with session:
        pass
    with pytest.raises(Exception, match="not open"):
        session.run("true")
    with pytest.raises(Exception, match="make a new one"), session:
        pass


async def test_a_plain_with_in_a_running_loop_says_what_to_do(repo: Path) -> None:
    with pytest.raises(Exception, match="async with"), IsolatedAgentSession("agent-1", repo):
        pass


async def test_a_patch_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_work, "MAX_PATCH_BYTES", 2**20)
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "file.txt").write_text("old\n")

    result = await worked(folder, "seq 300000 > large.txt", strategy="directory")

    assert result.status is Status.SUCCEEDED
    assert "patch" not in result.artifacts
    (note,) = [note for note in result.notes if "patch" in note]
    assert "larger than 1 MiB" in note
    command = note.split("`")[1]
    printed = subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout
    assert "+300000" in printed
