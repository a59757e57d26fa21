"""Where the hierarchies of control groups are mounted, and where in them we are."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CONTROLLERS = ("memory", "cpu", "cpuacct", "pids")


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


def look(mountinfo: str | None = None, own: str | None = None) -> Hierarchies:
    """Find the hierarchies from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`."""
    text = _table("/proc/self/mountinfo") if mountinfo is None else mountinfo
    groups = _groups(_table("/proc/self/cgroup") if own is None else own)
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


def _table(path: str) -> str:
    """Read it as it is: to Python a carriage return in the name of somebody's folder would end the line."""
    return Path(path).read_bytes().decode(errors="surrogateescape")


def _lines(text: str) -> Iterator[str]:
    """Take apart what the kernel wrote: it escapes newlines, and none of the other signs that `splitlines` ends at."""
    return (line for line in text.split("\n") if line)


def _groups(text: str) -> dict[str, str]:
    """Give our path in the hierarchy of each controller; that of version 2 has no name."""
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
    """Give our folder; a mount may show only a part of the hierarchy, and not even the part we are in."""
    below = PurePosixPath(path)
    if ".." in below.parts or not below.is_relative_to(mount.root):
        return mount.point
    return mount.point / below.relative_to(mount.root)


def _plain(escaped: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)
