"""A disk of its own: full at exactly its size, available after a kill, and gone without a trace."""

import asyncio
import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from shoal.errors import Broken, Unavailable
from shoal.workspaces import quota
from shoal.workspaces.mount import list_mounts, mount_image, unmount
from shoal.workspaces.quota import assert_available, is_full, open_disk, open_disk_again, settle, unwritten_bytes

MIB = 2**20


def loops(folder: Path) -> list[str]:
    """The images below *folder* that a loop device holds; a device goes a moment after its mount."""
    held = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(FileNotFoundError):  # it went between the listing and the look
            held.append(path.read_text().strip())
    return [file for file in held if str(folder) in file]


async def assert_gone(folder: Path) -> None:
    assert list_mounts(folder) == []
    async with asyncio.timeout(30):
        while loops(folder):
            await asyncio.sleep(0.05)


def filled(file: Path, piece: int = 4096) -> int:
    """Write until the kernel refuses, and return how many bytes were taken."""
    with file.open("wb", buffering=0) as target, pytest.raises(OSError, match="No space left") as raised:
        while True:
            target.write(bytes(piece))
    assert raised.value.errno == errno.ENOSPC
    return file.stat().st_size


async def test_a_box_without_a_disk_of_its_own_is_its_own_place(tmp_path: Path) -> None:
    async with open_disk_again(tmp_path) as disk:
        assert disk == tmp_path
    assert unwritten_bytes(tmp_path.parent) == 0


if os.geteuid() != 0:

    async def test_an_ordinary_user_is_told_that_it_cannot_be_had(tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match=r"only root can mount .*; run as root, or set `disk: polled`"):
            await assert_available(tmp_path / "trial")
        (tmp_path / "disk.img").touch()
        with pytest.raises(Unavailable, match="only root can mount it"):
            async with open_disk_again(tmp_path):
                pass

        assert not (tmp_path / "trial").exists()

else:

    @pytest.mark.parametrize("size_mib", [1, 50, 300])
    async def test_a_disk_is_full_at_exactly_its_size(tmp_path: Path, size_mib: int) -> None:
        async with open_disk(tmp_path, size_mib * MIB) as disk:
            settle(disk, size_mib * MIB)
            assert not is_full(disk, size_mib * MIB)

            taken = filled(disk / "fill")

            # A large file's list of its pieces takes blocks too.
            assert size_mib * MIB - 8 * quota.BLOCK_BYTES <= taken <= size_mib * MIB
            assert is_full(disk, size_mib * MIB)
            (disk / "fill").unlink()
            assert not is_full(disk, size_mib * MIB)
        assert not (disk / "fill").exists()
        await assert_gone(tmp_path)

    @pytest.mark.parametrize("piece_mib", [1, 16])
    async def test_a_disk_that_refused_a_large_write_is_full(tmp_path: Path, piece_mib: int) -> None:
        async with open_disk(tmp_path, 50 * MIB) as disk:
            settle(disk, 50 * MIB)

            taken = filled(disk / "fill", piece_mib * MIB)

            assert 47 * MIB < taken <= 50 * MIB
            assert is_full(disk, 50 * MIB)

    async def test_what_lies_there_already_does_not_count(tmp_path: Path) -> None:
        async with open_disk(tmp_path, 30 * MIB) as disk:
            (disk / "ours").write_bytes(os.urandom(20 * MIB))
            settle(disk, 10 * MIB)

            assert 10 * MIB - 32 * 1024 <= filled(disk / "fill") <= 10 * MIB

    async def test_many_small_files_fill_a_disk_no_sooner_than_one_large(tmp_path: Path) -> None:
        async with open_disk(tmp_path, 8 * MIB) as disk:
            settle(disk, 8 * MIB)
            count = 0
            with pytest.raises(OSError, match="No space left") as raised:
                while True:
                    (disk / f"{count}").write_text("x")
                    count += 1

            assert raised.value.errno == errno.ENOSPC
            assert is_full(disk, 8 * MIB)
            assert count > 0.95 * 8 * MIB / quota.BLOCK_BYTES

    async def test_a_disk_costs_only_what_is_written(tmp_path: Path) -> None:
        async with open_disk(tmp_path, 5000 * MIB) as disk:
            settle(disk, 5000 * MIB)

            assert (tmp_path / quota.IMAGE).stat().st_blocks * 512 < 3 * MIB

    async def test_a_limit_beyond_the_host_s_disk_is_the_host_s_disk(tmp_path: Path) -> None:
        host = os.statvfs(tmp_path)
        async with open_disk(tmp_path, 2**60) as disk:
            settle(disk, 2**60)

            there = os.statvfs(disk)
            assert there.f_bavail * there.f_frsize <= host.f_blocks * host.f_frsize

    async def test_a_whole_checkout_lies_on_it_too(tmp_path: Path) -> None:
        box, path = tmp_path / "box", tmp_path / "work" / "worker_0"
        box.mkdir()
        async with open_disk(box, 2 * MIB, path) as disk:
            settle(disk, 2 * MIB)
            assert filled(path / "fill") <= 2 * MIB
            assert is_full(disk, 2 * MIB)

        assert list(path.iterdir()) == []
        async with open_disk_again(box, path):
            assert (path / "fill").stat().st_size > MIB
        await assert_gone(tmp_path)

    async def test_it_is_found_again_mounted_or_not(tmp_path: Path) -> None:
        async with open_disk(tmp_path, MIB) as disk:
            (disk / "w").write_text("work")

        async with open_disk_again(tmp_path) as again:
            assert (again / "w").read_text() == "work"
        await assert_gone(tmp_path)
        await mount_image(tmp_path / quota.IMAGE, disk)
        async with open_disk_again(tmp_path) as again:
            assert (again / "w").read_text() == "work"
        await assert_gone(tmp_path)

    async def test_an_image_that_somebody_still_holds_is_never_mounted_twice(tmp_path: Path) -> None:
        """Two file systems that write to one image would destroy it: the second mount is of the first's device."""
        async with open_disk(tmp_path, MIB) as disk:
            held = (disk / "w").open("w")
            unmount(disk)
            async with open_disk_again(tmp_path) as again:
                held.write("late")
                held.flush()

                assert loops(tmp_path) == [str(tmp_path / quota.IMAGE)]
                assert (again / "w").read_text() == "late"
            held.close()
        await assert_gone(tmp_path)

    async def test_a_held_disk_is_taken_away_all_the_same(tmp_path: Path) -> None:
        async with open_disk(tmp_path, MIB) as disk:
            held = (disk / "w").open("w")

        assert list_mounts(tmp_path) == []
        held.close()
        await assert_gone(tmp_path)

    async def test_what_the_host_s_disk_has_yet_to_take_is_counted(tmp_path: Path) -> None:
        box = tmp_path / "box"
        box.mkdir()
        async with open_disk(box, 64 * MIB) as disk:
            settle(disk, 64 * MIB)
            assert unwritten_bytes(tmp_path) < MIB
            (disk / "fill").write_bytes(os.urandom(30 * MIB))

            arrived = (box / quota.IMAGE).stat().st_blocks * 512
            assert unwritten_bytes(tmp_path) + arrived >= 30 * MIB
            os.sync()
            assert unwritten_bytes(tmp_path) < 2 * MIB

    async def test_a_broken_image_is_told(tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / quota.IMAGE).write_bytes(bytes(MIB))

        with pytest.raises(Broken, match="cannot mount"):
            async with open_disk_again(tmp_path):
                pass
        await assert_gone(tmp_path)

    async def test_a_killed_maker_leaves_a_disk_that_is_found_again(tmp_path: Path) -> None:
        program = (
            "import asyncio, sys\n"
            "from pathlib import Path\n"
            "from shoal.workspaces.quota import open_disk\n"
            "async def main():\n"
            "    async with open_disk(Path(sys.argv[1]), 2**20) as disk:\n"
            "        (disk / 'w').write_text('work')\n"
            "        print('ready', flush=True)\n"
            "        await asyncio.sleep(600)\n"
            "asyncio.run(main())\n"
        )
        argv = [sys.executable, "-c", program, str(tmp_path)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.kill()
        assert list_mounts(tmp_path) == [tmp_path / "disk"]

        async with open_disk_again(tmp_path) as disk:
            assert (disk / "w").read_text() == "work"
        await assert_gone(tmp_path)

    async def test_what_can_be_had_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
        await assert_available(tmp_path / "trial")

        await assert_gone(tmp_path)

    async def test_a_missing_program_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quota, "SYSTEM_PATH", str(tmp_path))

        with pytest.raises(Unavailable, match=r"there is no `mkfs\.ext4`; `apt install e2fsprogs`"):
            await assert_available(tmp_path / "trial")

    async def test_thirty_disks_come_and_go_at_once(tmp_path: Path) -> None:
        async def one(number: int) -> None:
            box = tmp_path / f"box{number}"
            box.mkdir()
            async with open_disk(box, MIB) as disk:
                (disk / "w").write_text("work")

        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(one(number))

        await assert_gone(tmp_path)
