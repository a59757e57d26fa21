"""Files and processes of a session never reach the next one, whatever is reused."""

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal import AgentCoordinator, Task
from shoal.model.status import Status
from tests.acting import assert_nothing_left, ran, shown, step
from tests.conftest import git

SHOAL = Path(sys.executable).with_name("shoal")


def named(script: str, name: str) -> Task:
    return replace(Task.command(script), name=name)


async def test_who_ends_does_not_take_the_place_of_a_neighbour_of_the_same_name(repo: Path) -> None:
    async with AgentCoordinator(repo, 4, grace=0.5) as task_run:
        await task_run.run_agents([named("true", f"before-{number}") for number in range(3)])
        quick, slow = named("sleep 0.3", "same"), named("sleep 0.9; echo x > work", "same")
        calls = [task_run.run_agents([one]) for one in (quick, slow, quick)]
        results = [one for (one,) in await asyncio.gather(*calls)]

    assert [one.status for one in results] == [Status.NO_CHANGES, Status.SUCCEEDED, Status.NO_CHANGES]
    assert_nothing_left(repo)


async def test_a_base_that_goes_takes_nobodys_files_away(repo: Path) -> None:
    first = git(repo, "rev-parse", "HEAD")
    (repo / "second").write_text("2")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "second")

    async with AgentCoordinator(repo, 1) as task_run:
        before = await task_run.run_command("ls", base=first)
        await _cleaned(repo)
        after = await task_run.run_command("ls", base=first)

    assert before.output == after.output
    assert "README.md" in after.output


async def _cleaned(repo: Path) -> None:
    """Clean as another process would."""
    process = await asyncio.create_subprocess_exec(SHOAL, "clean", cwd=repo, stdout=subprocess.DEVNULL)
    assert await process.wait() == 0


def linger(prompt: str, workspace: Path) -> None:
    """Leave a process that writes later: a function runs outside the sandbox."""
    if prompt == "leave":
        subprocess.run("(sleep 0.3; echo x > late) > /dev/null 2>&1 &", shell=True, cwd=workspace, check=True)
    else:
        subprocess.run(["sleep", "0.6"], check=True)


if os.geteuid() == 0:

    async def test_what_a_function_leaves_running_is_no_work_of_the_next(repo: Path) -> None:
        task_run = AgentCoordinator(repo, 1, execution_mode="thread", grace=0.1)

        results = await task_run.run_agents([Task(prompt, name=prompt, agent=linger) for prompt in ("leave", "stay")])

        assert [one.status for one in results] == [Status.NO_CHANGES] * 2
        assert_nothing_left(repo)

    async def test_what_somebody_mounted_is_not_there_for_the_next(repo: Path) -> None:
        one = step("one", "mount -t tmpfs tmpfs d0 && echo secret > d0/token; ls d0")
        two = replace(step("two", "ls d0"), needs=("one",))

        report = await ran(repo, one, two, sandbox="none")

        assert report.steps[0].worker_results[0].output == "token\n"
        assert "token" not in report.steps[1].worker_results[0].output
        assert_nothing_left(repo)

    @pytest.mark.parametrize("wall", ["bubblewrap", "none"])
    async def test_times_of_whole_seconds_are_not_trusted(repo: Path, tmp_path: Path, wall: str) -> None:
        image, place = tmp_path / "image", tmp_path / "place"
        place.mkdir()
        make = f"truncate -s 200M {image} && mkfs.ext4 -q -I 128 {image} && mount -o loop {image} {place}"
        subprocess.run(make, shell=True, check=True)
        try:
            shutil.copytree(repo, place / "repo", symlinks=True)
            names = [f"s{number}" for number in range(4)]
            steps = [step(name, 'ls "$TMPDIR"; echo secret > "$TMPDIR/token"') for name in names]
            chain = [replace(one, needs=tuple(names[:at][-1:])) for at, one in enumerate(steps)]

            report = await ran(place / "repo", *chain, sandbox=wall)
        finally:
            subprocess.run(["umount", "-l", place], check=True)

        assert [one.worker_results[0].output for one in report.steps] == [""] * 4

    async def test_without_a_wall_who_is_left_ends_with_the_main_process(repo: Path) -> None:
        # Who is left holds the output open: to wait for it to fall silent would take half a second, and it writes on.
        script = "(while :; do echo x >> late; sleep 0.01; done) & sleep 0.1; wc -l < late"

        report = await ran(repo, step("work", script), sandbox="none")

        (worker,) = report.steps[0].worker_results
        lines = len(shown(repo, worker, "late").splitlines())
        assert lines <= int(worker.output) + 20, "at once"

    @pytest.mark.parametrize("name", ["a.b", "1X", "IFS", "OPTIND", "LD_NOTHING"])
    async def test_without_a_wall_variables_of_any_name_arrive(repo: Path, name: str) -> None:
        one = step("work", "", env={name: "x", "PLAIN": "y"})
        agent = replace(one.task.agent, command=("/usr/bin/env",))

        report = await ran(repo, replace(one, task=replace(one.task, agent=agent)), sandbox="none")

        assert {f"{name}=x", "PLAIN=y"} <= set(report.steps[0].worker_results[0].output.splitlines())
