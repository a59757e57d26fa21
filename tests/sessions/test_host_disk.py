"""The host's reserve of disk space stays free, and nobody can hide what it has written."""

import contextlib
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

from shoal.model.limits import ResourceLimits
from shoal.model.status import Status
from shoal.proc.free_space import room
from shoal.workspaces.mount import mount_image, unmount_image
from tests.acting import StopAtWait, ran, step
from tests.conftest import make_repo

# Folders inside each other that never have the same name twice, among files that keep a walk busy: whatever the walk
# has listed is gone when it comes to open it.
RENAMES = """exec python3 -c '
import os, time
fds = [os.open(os.environ["TMPDIR"], os.O_RDONLY)]
for level in range(3):
    for i in range(2000): os.close(os.open(f"pad{i}", os.O_CREAT | os.O_WRONLY, dir_fd=fds[-1]))
    os.mkdir("n0", dir_fd=fds[-1])
    fds.append(os.open("n0", os.O_RDONLY, dir_fd=fds[-1]))
for d in fds[:-1]:
    if os.fork() == 0:
        n = 0
        while True: os.rename(f"n{n}", f"n{n + 1}", src_dir_fd=d, dst_dir_fd=d); n += 1
f = os.open("big", os.O_CREAT | os.O_WRONLY, dir_fd=fds[-1])
for _ in range(120): os.write(f, bytes(1 << 20))
time.sleep(60)'"""
SMALL = ResourceLimits(disk_mb=60, cpu_percent=None, time_seconds=40)


async def test_folders_that_are_renamed_all_the_while_hide_nothing(repo: Path) -> None:
    report = await ran(repo, step("hide", RENAMES, limits=SMALL))

    (result,) = report.steps[0].worker_results
    assert (result.status, result.limit) == (Status.OVER_LIMIT, "disk")


async def test_empty_files_count_for_the_disk(repo: Path) -> None:
    make = (
        "cd $TMPDIR; i=0; while [ $i -lt 40 ]; do i=$((i+1)); mkdir $i; (cd $i; seq 500 | xargs touch); done; sleep 60"
    )
    few = ResourceLimits(disk_mb=40, cpu_percent=None, time_seconds=40)

    report = await ran(repo, step("many", make, limits=few))

    (result,) = report.steps[0].worker_results
    assert (result.status, result.limit) == (Status.OVER_LIMIT, "disk"), "20,000 files are 80 MB"


if os.geteuid() == 0:
    FILL = "head -c 3G /dev/zero > fill; sleep 60"
    FILES = "cd $TMPDIR; seq 60000 | xargs touch; sleep 60"

    @contextlib.contextmanager
    def least_room(place: Path, seen: list[tuple[int, int]]) -> Iterator[None]:
        """Note what was spare on a disk at the worst."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.002):
                now = room(place)
                seen.append((now.spare_bytes, now.spare_inodes))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    @contextlib.asynccontextmanager
    async def small_disk(tmp_path: Path, mib: int) -> AsyncIterator[Path]:
        image, disk = tmp_path / "image", tmp_path / "disk"
        disk.mkdir()
        with image.open("xb") as file:
            file.truncate(mib << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-N", "20000", image], check=True)
        await mount_image(image, disk)
        try:
            yield disk
        finally:
            await unmount_image(disk)

    async def test_who_fills_the_hosts_disk_ends_alone_before_its_last_part_is_taken(tmp_path: Path) -> None:
        async with small_disk(tmp_path, 600) as disk:
            seen: list[tuple[int, int]] = []
            repo = make_repo(disk / "repo")
            with least_room(disk, seen):
                good = step("good", "sleep 3; echo x > x")
                report = await ran(repo, step("bytes", FILL), step("files", FILES), good)

        results = {one.step: one.worker_results[0] for one in report.steps}
        assert {results[name].limit for name in ("bytes", "files")} == {"disk"}
        assert results["good"].status is Status.SUCCEEDED
        assert min(spare for spare, _ in seen) >= 0
        assert min(spare for _, spare in seen) >= 0

    async def test_to_keep_work_does_not_fill_the_hosts_disk(tmp_path: Path) -> None:
        """Git's copies of files that nobody can compress take as much again as the agent was allowed."""
        impatient = StopAtWait()
        async with small_disk(tmp_path, 160) as disk:
            seen: list[tuple[int, int]] = []
            repo = make_repo(disk / "repo")
            with least_room(disk, seen):
                random = step("random", "head -c 80000000 /dev/urandom > r")
                report = await ran(repo, random, stop=impatient.stop, listen=impatient.listen)
            floor = room(disk).floor_bytes
            assert not list((repo / ".shoal/boxes").glob("*/seal-*"))

        (result,) = report.steps[0].worker_results
        assert "must stay free" in impatient.reasons[0]
        assert result.status is not Status.SUCCEEDED
        assert result.raw is not None
        assert min(spare for spare, _ in seen) > -floor

    async def test_a_checkout_that_is_larger_than_its_commit_does_not_fill_the_hosts_disk(tmp_path: Path) -> None:
        """Each `$Id$` becomes twelve times as long, and one file of many names becomes many."""
        async with small_disk(tmp_path, 160) as disk:
            grow = "echo '* ident' > .gitattributes; yes '$Id$' | head -c 2000000 > i; seq 7 | xargs -I N ln i iN"
            seen: list[tuple[int, int]] = []
            repo = make_repo(disk / "repo")
            with least_room(disk, seen):
                following = replace(step("next", "echo x > x"), needs=("grow",))
                report = await ran(repo, step("grow", grow), following, step("beside", "echo y > y"))
            floor = room(disk).floor_bytes
            assert not list((repo / ".shoal/base").glob("making-*"))

        results = {result.step: result.worker_results[0] for result in report.steps}
        assert results["grow"].status is Status.SUCCEEDED
        assert results["next"].status is Status.FAILED
        assert "must stay free" in str(results["next"].error)
        assert results["beside"].status is Status.SUCCEEDED
        assert min(spare for spare, _ in seen) > -floor
