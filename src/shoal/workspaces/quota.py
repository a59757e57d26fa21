"""A session's own disk: a file system of fixed size, so that the kernel enforces the limit."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from shoal import proc
from shoal.errors import Broken, Unavailable
from shoal.model.command import Command
from shoal.workspaces.mount import mount_bind, mount_image, unmount, unmount_image

IMAGE = "disk.img"
MOUNTED = "disk"
TREE = "tree"
BALLAST = "ballast"

BLOCK_BYTES = 4096
# A large write is refused as a whole: 2 MiB of 700 were left when writes of 4 MiB hit the end (Linux 6.18).
FULL_BYTES = 2 * 2**20 + 64 * 1024
FULL_PART = 8
SPARE_BYTES = 32 * 2**20
MAX_BYTES = 8 * 2**40
MAKE_SECONDS = 120.0

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# An inode for each block, so that many small files fill the disk no sooner than one large file. No journal, because
# the work is in a ref long before a crash of the machine matters. The tables stay sparse.
MAKE = (
    *("mkfs.ext4", "-q", "-F", "-b", str(BLOCK_BYTES), "-i", str(BLOCK_BYTES), "-m", "0"),
    *("-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard"),
)


@contextlib.asynccontextmanager
async def open_disk(session_dir: Path, room_bytes: int, path: Path | None = None) -> AsyncIterator[Path]:
    """Make a disk in the folder *session_dir* with room for more than *room_bytes*, and give where it is mounted.

    It is sparse: it takes only as much of the host's disk as is written to it. A workspace that is a whole checkout
    is on it too, mounted at *path*. On exit, the disk is unmounted; its image stays until *session_dir* is removed.
    """
    disk, fresh = session_dir / MOUNTED, session_dir / f"{IMAGE}.new"
    disk.mkdir()
    with fresh.open("xb") as image:
        # No more than the host has: its reserve is reached first. Tables and reserved blocks take up to 9 %.
        image.truncate(min(room_bytes, _size(session_dir), MAX_BYTES) * 9 // 8 + SPARE_BYTES)
    await _format(fresh)
    fresh.rename(session_dir / IMAGE)  # an image by that name is whole
    async with _hold_mounted(session_dir, path):
        yield disk


@contextlib.asynccontextmanager
async def open_disk_again(session_dir: Path, path: Path | None = None) -> AsyncIterator[Path]:
    """Yield the folder with the files of a killed session: on a disk of its own, or *session_dir* itself."""
    if not (session_dir / IMAGE).exists():
        yield session_dir
        return
    if os.geteuid() != 0:
        raise Unavailable("the disk of a killed session", "only root can mount it", "run Shoal as the user who ran it")
    async with _hold_mounted(session_dir, path) as disk:
        yield disk


@contextlib.asynccontextmanager
async def _hold_mounted(session_dir: Path, path: Path | None) -> AsyncIterator[Path]:
    disk = session_dir / MOUNTED
    try:
        if not disk.is_mount():
            await mount_image(session_dir / IMAGE, disk)
        with _hold_bind(disk / TREE, path) if path else contextlib.nullcontext():
            yield disk
    finally:
        await unmount_image(disk)


@contextlib.contextmanager
def _hold_bind(tree: Path, path: Path) -> Iterator[None]:
    for folder in (tree, path):
        folder.mkdir(parents=True, exist_ok=True)
    mount_bind(tree, path)
    try:
        yield
    finally:
        unmount(path)


def settle(disk: Path, free_bytes: int) -> None:
    """Leave just *free_bytes* free, by reserving the rest with an unwritten file."""
    spare = _free(disk) - min(free_bytes, _size(disk.parent), MAX_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    if spare < 0:
        raise Broken(f"the disk at {disk} is {-spare} bytes too small for what the agent is to have")
    if spare:
        with (disk / BALLAST).open("xb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, spare)


def is_full(disk: Path, size_bytes: int) -> bool:
    """Return whether almost nothing is left of the *size_bytes* that were free at first."""
    there = os.statvfs(disk)
    return there.f_bavail * there.f_frsize < min(FULL_BYTES, size_bytes // FULL_PART) or there.f_favail == 0


def unwritten_bytes(session_dirs: Path) -> int:
    """Sum up what agents wrote to their own disks that has yet to reach the host's disk."""
    place = os.fspath(session_dirs)
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return 0
    # With strings: it is called for each session, and reads all of them.
    return sum(_unwritten(session_dirs / name) for name in names if os.path.exists(f"{place}/{name}/{IMAGE}"))  # noqa: PTH110


def _unwritten(session_dir: Path) -> int:
    disk = session_dir / MOUNTED
    try:
        if not disk.is_mount():
            return 0
        there = os.statvfs(disk)
        never = (disk / BALLAST).stat().st_blocks * 512 if (disk / BALLAST).exists() else 0
        taken = (session_dir / IMAGE).stat().st_blocks * 512
    except OSError:  # it was removed meanwhile
        return 0
    return max(0, (there.f_blocks - there.f_bfree) * there.f_frsize - never - taken)


async def assert_available(place: Path) -> None:
    """Make a small disk at *place*, which must not exist; raise `Unavailable` if that fails."""
    what = "`disk: exact`"
    if os.geteuid() != 0:
        why = "only root can mount a file system that outlives its agent, so that its work can be kept"
        raise Unavailable(what, why, "run as root, or set `disk: polled`")
    if shutil.which(MAKE[0], path=SYSTEM_PATH) is None:
        raise Unavailable(what, f"there is no `{MAKE[0]}`", "`apt install e2fsprogs`, or set `disk: polled`")
    try:
        place.mkdir(mode=0o700)
        async with open_disk(place, 2**20) as disk:
            settle(disk, 2**20)
    except (Broken, OSError) as error:
        raise Unavailable(what, str(error), "load the `loop` module, or set `disk: polled`") from error


async def _format(image: Path) -> None:
    env = {"PATH": SYSTEM_PATH, "LC_ALL": "C"}
    done = await proc.run(Command(argv=(*MAKE, str(image)), cwd=Path("/"), env=env), timeout=MAKE_SECONDS)
    if not done.ok:
        raise Broken(f"cannot make a file system in {image}: {done.stderr.decode(errors='replace').strip()[-300:]}")


def _free(folder: Path) -> int:
    there = os.statvfs(folder)
    return there.f_bavail * there.f_frsize


def _size(folder: Path) -> int:
    there = os.statvfs(folder)
    return there.f_blocks * there.f_frsize
