"""A full disk pauses a run, and Shoal can always recover from it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import git, make_repo

SHOAL = (sys.executable, "-c", "from shoal.cli.main import main; main()")
SMALL = 48 * 2**20

if os.geteuid() == 0:  # only root may mount

    @pytest.fixture
    def small(tmp_path: Path) -> Iterator[Path]:
        """Make a repository on a disk of its own."""
        disk = tmp_path / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", disk], check=True)
        try:
            repo = disk / "repo"
            yield make_repo(repo)
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)

    def fill(repo: Path) -> Path:
        """Fill the disk."""
        filler = repo.parent / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(2**20))
            except OSError:
                pass
            try:
                while True:
                    file.write(bytes(512))
            except OSError:
                return filler

    def shoal(repo: Path, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run((*SHOAL, *words), cwd=repo, text=True, capture_output=True, timeout=120)

    def run_in_background(repo: Path, task: str, *more: str) -> "subprocess.Popen[str]":
        words = ("run", "--task", task, "--command", "sh -s", *more)
        return subprocess.Popen(
            (*SHOAL, *words), cwd=repo, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
        )

    def read_until(process: "subprocess.Popen[str]", word: str) -> str:
        assert process.stdout is not None
        for line in process.stdout:
            if word in line:
                return line
        raise AssertionError(f"no line has {word!r}")

    def test_clean_recovers_a_killed_run_with_no_byte_free(small: Path) -> None:
        with run_in_background(small, "echo precious > work; echo rea''dy; sleep 3456") as process:
            read_until(process, "running")
            with subprocess.Popen((*SHOAL, "logs", "-f"), cwd=small, text=True, stdout=subprocess.PIPE) as log:
                read_until(log, "ready")
                log.kill()
            process.send_signal(signal.SIGKILL)
        fill(small)

        status = shoal(small, "status")
        assert (status.returncode, "interrupted" in status.stdout) == (0, True), status.stderr
        done = shoal(small, "clean")

        assert done.returncode == 0, done.stderr
        [branch] = git(small, "branch", "--list", "agent/*", "--format=%(refname:short)").split()
        assert git(small, "show", f"{branch}:work") == "precious"

    def test_a_run_on_a_full_disk_waits_says_so_and_continues(small: Path) -> None:
        assert shoal(small, "run", "--task", "true", "--command", "sh -s").returncode == 0
        assert (small / ".shoal/reserve").stat().st_blocks > 0
        filler = fill(small)

        with run_in_background(small, "echo done > work") as process:
            assert "are free on the disk" in read_until(process, "waiting")
            status = json.loads(shoal(small, "status", "--json").stdout)
            assert "must stay free" in status["waits_for"]
            filler.unlink()
            read_until(process, "continuing")
            assert process.wait(60) == 0
        assert json.loads(shoal(small, "status", "--json").stdout).get("waits_for", "") == ""

    def test_work_that_cannot_be_kept_on_a_full_disk_is_kept_when_there_is_room(small: Path, tmp_path: Path) -> None:
        task = f"head -c 9000000 /dev/urandom > big; echo rea''dy; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
        with run_in_background(small, task, "--sandbox", "none") as process:
            read_until(process, "running")
            with subprocess.Popen((*SHOAL, "logs", "-f"), cwd=small, text=True, stdout=subprocess.PIPE) as log:
                read_until(log, "ready")
                log.kill()
            filler = fill(small)
            (tmp_path / "go").touch()
            assert "cannot be kept yet" in read_until(process, "waiting")
            filler.unlink()
            process.wait(60)

        [branch] = git(small, "branch", "--list", "agent/*", "--format=%(refname:short)").split()
        assert git(small, "cat-file", "-s", f"{branch}:big") == "9000000"
        assert shoal(small, "clean").returncode == 0

    @pytest.mark.deep
    def test_an_agent_that_fills_the_disk_itself_ends_and_the_run_continues(small: Path) -> None:
        """Waiting for room would be waiting for its own files to go, so only seconds are given to others."""
        tasks = ("--task", "head -c 30000000 /dev/urandom > huge", "--task", "sleep 1; echo good > good")
        done = shoal(small, "run", *tasks, "--command", "sh -s", "--json")

        report = json.loads(done.stdout)
        huge, good = (step["worker_results"][0] for step in report["steps"])
        assert done.returncode == 1, done.stderr
        assert huge["status"] in ("failed", "over_limit")
        assert "the agent's own files take" in huge["error"]
        assert (Path(huge["raw"]) / "upper/huge").stat().st_size == 30_000_000
        assert good["status"] == "succeeded"
        cleaned = shoal(small, "clean", "--force")  # there is no room for an archive either, so it says what to do
        assert f"{huge['raw']}` deletes it permanently" in cleaned.stdout
        subprocess.run(["rm", "-rf", huge["raw"]], check=True)
        assert shoal(small, "clean").returncode == 0
        assert shoal(small, "run", "--task", "echo next > next", "--command", "sh -s").returncode == 0
