"""The one door to the kernel's control files: what is read and written, made and removed below a cgroup mount."""

import contextlib
import os
from pathlib import Path

SMALL_BYTES = 64 * 1024


class Files:
    """Control files as the kernel gives them: a folder comes with its files and goes with them."""

    def make(self, folder: Path) -> None:
        """Make a group."""
        os.mkdir(folder, 0o755)  # noqa: PTH102 - half the time of Path.mkdir

    def remove(self, folder: Path) -> bool:
        """Remove a group and say whether it is gone; one that somebody is in stays."""
        try:
            os.rmdir(folder)  # noqa: PTH106
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def put(self, file: str, value: str) -> None:
        """Set a value, in a file that is there."""
        fd = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)

    def get(self, file: str | Path) -> str | None:
        """Read a small file; `None` when it is not to be had."""
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(fd, SMALL_BYTES).decode().strip()
        except OSError:  # its group is gone
            return None
        finally:
            os.close(fd)

    def number(self, file: str, entry: str | None = None) -> int | None:
        """Read a number that stands alone, or behind *entry* on a line of its own."""
        lines = (self.get(file) or "").splitlines()
        words = [line.removeprefix(f"{entry} ") for line in lines if entry is None or line.startswith(f"{entry} ")]
        with contextlib.suppress(ValueError, IndexError):
            return int(words[0])
        return None

    def pids(self, folder: Path) -> list[int]:
        """Read who is in a group, however many they are."""
        said = b""
        with contextlib.suppress(OSError):
            fd = os.open(f"{folder}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while more := os.read(fd, SMALL_BYTES):
                    said += more
            finally:
                os.close(fd)
        return [int(word) for word in said.split()]

    def has_groups(self, folder: Path) -> bool:
        """Say whether there is a group below one: a folder counts those that are in it."""
        return os.stat(folder).st_nlink > 2  # noqa: PTH116

    def groups(self, folder: Path) -> list[Path]:
        """List the groups below one."""
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        return []
