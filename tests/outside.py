"""The world outside of a test: what other processes do, and what tests could leave: files of attacks, and mounts."""

import os
import re
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path

# What attacks and agents of these tests write; others may use the shared folders at the same time.
OURS = (".git", ".shoal", "shoal-x", "canary*", "planted*", "mounted*", "evil*", "half", "w", "x", "probe", "good.txt")
SHARED = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))


def wait_until(is_so: Callable[[], object], seconds: float = 60) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def planted() -> set[Path]:
    """Find whatever lies in the root folder, and what could be of an attack's in the folders that all may write to."""
    shared = (Path(folder, name) for folder in SHARED for name in _names(folder))
    return {Path("/", name) for name in _names(Path("/"))} | {path for path in shared if is_ours(path)}


def is_ours(path: Path) -> bool:
    """Say whether an attack of these tests would leave such a name."""
    return any(fnmatch(path.name, pattern) for pattern in OURS)


def mounts_below(folder: Path) -> set[Path]:
    """Find the mounts below a folder."""
    targets = (_unescaped(line.split(" ")[1]) for line in Path("/proc/self/mounts").read_text().splitlines())
    return {target for target in targets if target.is_relative_to(folder)}


def told(left: Iterable[Path]) -> str:
    """Say what was left, on one line."""
    return f"left by the tests, which counts as failed: {', '.join(sorted(map(str, left)))}"


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _unescaped(target: str) -> Path:
    return Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), target))
