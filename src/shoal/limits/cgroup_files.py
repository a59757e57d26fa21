"""All access to the kernel's control files: reading, writing, making and removing groups below a cgroup mount."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

SMALL_BYTES = 64 * 1024


class CgroupFiles:
    """The kernel's control files, which appear and disappear with their folder."""

    def make(self, folder: Path) -> None:
        """Make a group."""
        os.mkdir(folder, 0o755)  # noqa: PTH102 - half the time of Path.mkdir

    def remove(self, folder: Path) -> bool:
        """Remove a group and return whether it is gone; a group with processes stays."""
        try:
            os.rmdir(folder)  # noqa: PTH106
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def write(self, file: str, value: str) -> None:
        """Write a value to an existing file."""
        fd = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)

    def get(self, file: str | Path) -> str | None:
        """Read a small file; `None` if it cannot be read."""
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
        """Read a number that is the whole file, or that follows *entry* on its line."""
        lines = (self.get(file) or "").splitlines()
        words = [line.removeprefix(f"{entry} ") for line in lines if entry is None or line.startswith(f"{entry} ")]
        with contextlib.suppress(ValueError, IndexError):
            return int(words[0])
        return None

    def pids(self, folder: Path) -> list[int]:
        """Read the pids in a group, however many there are."""
        content = b""
        with contextlib.suppress(OSError):
            fd = os.open(f"{folder}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while more := os.read(fd, SMALL_BYTES):
                    content += more
            finally:
                os.close(fd)
        return [int(word) for word in content.split()]

    def has_groups(self, folder: Path) -> bool:
        """Return whether a group has subgroups, by the folder's link count."""
        return os.stat(folder).st_nlink > 2  # noqa: PTH116

    def groups(self, folder: Path) -> list[Path]:
        """List the direct subgroups."""
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        return []


CONTROLLERS = ("memory", "cpu", "cpuacct", "pids", "freezer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """Our own group: in each hierarchy of version 1 by its controller, and in that of version 2 below its *mount*."""

    v1: Mapping[str, Path]
    v2: Path | None
    mount: Path | None


@dataclass(frozen=True, slots=True)
class _Mount:
    kind: str
    root: str
    point: Path
    options: frozenset[str]


def find_hierarchies(mountinfo: str | None = None, own: str | None = None) -> Hierarchies:
    """Find the hierarchies from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`."""
    text = _read_bytes("/proc/self/mountinfo") if mountinfo is None else mountinfo
    groups = _groups(_read_bytes("/proc/self/cgroup") if own is None else own)
    mounts = list(_mounts(text))
    v1 = {
        name: _own(mount, groups[name])
        for mount in mounts
        for name in CONTROLLERS
        if mount.kind == "cgroup" and name in mount.options and name in groups
    }
    unified = next((mount for mount in mounts if mount.kind == "cgroup2" and "" in groups), None)
    return Hierarchies(
        v1=v1,
        v2=_own(unified, groups[""]) if unified else None,
        mount=unified.point if unified else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsHost:
    """Where to look for enforcement."""

    hierarchies: Hierarchies = field(default_factory=find_hierarchies)
    files: CgroupFiles = field(default_factory=CgroupFiles)


def _read_bytes(path: str) -> str:
    """Read the file without newline translation: a folder's name may contain a carriage return."""
    return Path(path).read_bytes().decode(errors="surrogateescape")


def _lines(text: str) -> Iterator[str]:
    """Split what the kernel wrote: it escapes newlines, but not the other characters that `splitlines` splits at."""
    return (line for line in text.split("\n") if line)


def _groups(text: str) -> dict[str, str]:
    """Map each controller to our path in its hierarchy; version 2 has an empty name."""
    found = {}
    for line in _lines(text):
        _, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(","), path))
    return found


def _mounts(text: str) -> Iterator[_Mount]:
    for line in _lines(text):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            _, _, _, root, point, *_ = before.split(" ")
            yield _Mount(kind, _plain(root), Path(_plain(point)), frozenset(options.split(",")))


def _own(mount: _Mount, path: str) -> Path:
    """Return our folder; a mount may show only part of the hierarchy, even without our own group."""
    below = PurePosixPath(path)
    if ".." in below.parts or not below.is_relative_to(mount.root):
        return mount.point
    return mount.point / below.relative_to(mount.root)


def _plain(escaped: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)
