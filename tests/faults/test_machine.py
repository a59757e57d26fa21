"""Faults of the machine, by their rows of the catalogue: disks without inodes, over quota or read-only, a locked ledger."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, environment, shoal_in
from tests.cli.flows import written
from tests.cli.test_approve import started
from tests.conftest import git, make_repo
from tests.outside import mounts_below, wait_until

FAILING_WRITES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes to regular files of a repository fail with EDQUOT as long as the file OVER_QUOTA exists. */
static int fails(int fd) {
    char link[64], name[4096];
    struct stat seen;
    const char *flag = getenv("OVER_QUOTA"), *root = getenv("QUOTA_ROOT");
    if (!flag || !root || access(flag, F_OK) != 0 || fstat(fd, &seen) != 0 || !S_ISREG(seen.st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0) return 0;
    name[length] = 0;
    return strncmp(name, root, strlen(root)) == 0 ? (errno = EDQUOT, 1) : 0;
}
#define REAL(name) dlsym(RTLD_NEXT, name)
ssize_t write(int fd, const void *data, size_t size) {
    return fails(fd) ? -1 : ((ssize_t (*)(int, const void *, size_t))REAL("write"))(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fails(fd) ? -1 : ((ssize_t (*)(int, const void *, size_t, off_t))REAL("pwrite"))(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fails(fd) ? -1 : ((ssize_t (*)(int, const void *, size_t, off64_t))REAL("pwrite64"))(fd, data, size, at);
}
int posix_fallocate(int fd, off_t at, off_t size) {
    return fails(fd) ? EDQUOT : ((int (*)(int, off_t, off_t))REAL("posix_fallocate"))(fd, at, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return fails(fd) ? EDQUOT : ((int (*)(int, off64_t, off64_t))REAL("posix_fallocate64"))(fd, at, size);
}
"""
HOLD = """
import sqlite3, sys, time
ledger = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
ledger.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
ledger.execute("COMMIT")
"""


def run_here(repo: Path, *words: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [SHOAL, *words],
        cwd=repo,
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if "--json" in words else subprocess.STDOUT,
        text=True,
    )


def read_wait(run: "subprocess.Popen[str]") -> str:
    """Read until the run says what it waits for."""
    assert run.stdout is not None
    return next((line for line in run.stdout if "waiting" in line), "it said nothing")


def branches(repo: Path) -> list[str]:
    return git(repo, "branch", "--list", "agent/*", "--format=%(refname:short)").split()


@pytest.mark.deep
@pytest.mark.timeout(240)
def test_a_program_that_locks_the_ledger_for_a_minute_costs_a_run_nothing(repo: Path, tmp_path: Path) -> None:
    gate = f"echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo work > work"
    written(repo, "\n".join(["steps:", *(f"  - {{name: s{n}, agent: work, prompt: x}}" for n in range(3))]),
            runtime="sandbox: none, network: host, max_concurrent_workers: 1", work=gate)  # fmt: skip
    with started(repo, SHOAL, "run", "p.yaml", "--events") as run:
        run.until_said("ready")
        began = time.monotonic()
        argv = (sys.executable, "-c", HOLD, repo / ".shoal/ledger.db", "60")
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            (tmp_path / "go").touch()
            reading = shoal_in(repo)("status")  # the very first reading waits, too, or reads beside the lock
            assert holder.wait() == 0
        held = time.monotonic() - began
        assert run.process.wait(timeout=120) == 0

    assert held >= 60
    assert reading.code == 0, reading.err
    assert len(branches(repo)) == 3
    assert json.loads(shoal_in(repo)("status", "--json").out)["status"] == "succeeded"


if shutil.which("cc"):

    def test_a_quota_that_is_used_up_for_a_while_costs_no_work(repo: Path, tmp_path: Path) -> None:
        source, library, flag, go = (tmp_path / name for name in ("q.c", "q.so", "over", "go"))
        source.write_text(FAILING_WRITES)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        work = f"echo work > $SHOAL_STEP; touch {tmp_path}/ready; while [ ! -e {go} ]; do sleep 0.05; done"
        written(repo, "steps: [{name: a, agent: work, prompt: x}, {name: b, agent: work, prompt: x, needs: [a]}]",
                work=work)  # fmt: skip
        env = environment(LD_PRELOAD=str(library), OVER_QUOTA=str(flag), QUOTA_ROOT=str(repo))
        with run_here(repo, "run", "p.yaml", env=env) as run:
            wait_until((tmp_path / "ready").exists)
            flag.touch()
            go.touch()
            why = read_wait(run)
            flag.unlink()
            rest, _ = run.communicate(timeout=90)

        assert run.returncode == 0, rest
        assert "quota" in why
        assert [git(repo, "show", f"{branch}:{name}") for name, branch in zip("ab", branches(repo), strict=True)] == [
            "work"
        ] * 2
        assert git(repo, "fsck", "--full", "--strict", "--no-dangling") == ""


if os.geteuid() == 0:  # only root may mount

    def mount(kind: str, options: str, source: Path | str, folder: Path) -> None:
        subprocess.run(["mount", "-t", kind, "-o", options, source, folder], check=True)

    @pytest.fixture
    def few_inodes(tmp_path: Path) -> Iterator[Path]:
        """Make a repository on a disk for 3,000 files."""
        (disk := tmp_path / "disk").mkdir()
        mount("tmpfs", "nr_inodes=3000,size=200m", "tmpfs", disk)
        try:
            yield make_repo(disk / "repo")
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)

    @pytest.fixture
    def image(tmp_path: Path) -> Iterator[Path]:
        """Make a repository on a disk that its kernel makes read-only after an error."""
        file, disk = tmp_path / "image", tmp_path / "disk"
        disk.mkdir()
        with file.open("wb") as made:
            made.truncate(80 * 2**20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", file], check=True)
        mount("ext4", "loop,errors=remount-ro", file, disk)
        try:
            yield make_repo(disk / "repo")
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)

    def restart_machine(disk: Path, file: Path) -> None:
        """Unmount all that is below *disk*, repair its file system, and mount it again."""
        for place in sorted((*mounts_below(disk), disk), reverse=True):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
        wait_until(lambda: not subprocess.run(["losetup", "-j", file], check=True, capture_output=True).stdout)
        subprocess.run(["e2fsck", "-fy", file], check=False, capture_output=True)
        mount("ext4", "loop", file, disk)

    def use_up_inodes(folder: Path) -> None:
        folder.mkdir()
        try:
            for number in range(5000):
                (folder / str(number)).touch()
        except OSError:
            return
        raise AssertionError("the disk has more inodes than it should")

    def make_read_only(repo: Path) -> None:
        device = subprocess.run(
            ["findmnt", "--noheadings", "--output", "SOURCE", "--target", repo],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        (Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error").write_text("1")
        wait_until(lambda: not is_writable(repo))

    def is_writable(repo: Path) -> bool:
        try:
            (repo / "probe").touch()
        except OSError:
            return False
        return True

    def test_without_a_free_inode_a_run_waits_and_then_continues(few_inodes: Path) -> None:
        assert shoal_in(few_inodes)("run", "--task", "true", "--command", "sh -s").code == 0
        full = few_inodes.parent / "full"
        use_up_inodes(full)

        status = shoal_in(few_inodes)("status")
        words = ("run", "--task", "echo done > work", "--command", "sh -s")
        with run_here(few_inodes, *words) as run:
            why = read_wait(run)
            shutil.rmtree(full)
            rest, _ = run.communicate(timeout=60)

        assert run.returncode == 0, rest
        assert status.code == 0, status.err
        assert "more files fit" in why, why
        assert [git(few_inodes, "show", f"{branch}:work") for branch in branches(few_inodes)] == ["done"]

    def test_an_agent_that_uses_up_the_inodes_ends_alone(few_inodes: Path) -> None:
        greedy = "mkdir many; i=0; while : > many/$i; do i=$((i+1)); done; sleep 30"
        tasks = ("--task", greedy, "--task", "echo good > good; sleep 1")
        with run_here(few_inodes, "run", *tasks, "--command", "sh -s", "--json") as run:
            out, _ = run.communicate(timeout=100)

        steps = json.loads(out)["steps"]
        many, good = (step["worker_results"][0] for step in steps)
        assert (many["status"], many["limit"]) == ("over_limit", "disk"), many
        assert good["status"] == "succeeded", good
        assert git(few_inodes, "show", f"{good['branch']}:good") == "good"
        assert shoal_in(few_inodes)("clean", "--force").code in (0, 3)
        assert shoal_in(few_inodes)("status").code == 0

    def test_a_read_only_disk_refuses_a_run_with_the_cause_and_can_be_read(image: Path) -> None:
        shoal = shoal_in(image)
        assert shoal("run", "--task", "echo a > a", "--command", "sh -s").code == 0
        before = branches(image)
        make_read_only(image)

        refused, status, logs = shoal("run", "--task", "true", "--command", "sh -s"), shoal("status"), shoal("logs")
        cleaned = shoal("clean")

        assert refused.code == 3, refused
        assert "read-only" in refused.err.lower()
        assert "bug" not in refused.err + cleaned.err
        assert (status.code, logs.code) == (0, 0), status.err + logs.err
        assert branches(image) == before

    def test_a_disk_that_becomes_read_only_starts_no_more_agents_and_loses_none_that_worked(
        image: Path, tmp_path: Path
    ) -> None:
        work = f"echo precious > work; sync; echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        written(image, "steps: [{name: a, agent: work, prompt: x}, {name: b, agent: work, prompt: x}]",
                runtime="sandbox: none, network: host, max_concurrent_workers: 1", work=work)  # fmt: skip
        with started(image, SHOAL, "run", "p.yaml", "--events") as run:
            run.until_said("ready")
            make_read_only(image)
            (tmp_path / "go").touch()
            code = run.process.wait(timeout=90)
        restart_machine(image.parent, tmp_path / "image")

        cleaned = shoal_in(image)("clean")

        assert code == 3
        assert cleaned.code == 0, cleaned.err + cleaned.out
        assert [git(image, "show", f"{branch}:work") for branch in branches(image)] == ["precious"]
        assert git(image, "fsck", "--full", "--strict", "--no-dangling") == ""
