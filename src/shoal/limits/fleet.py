"""The name of a fleet, from which its coordinator is known, and whether that is still alive."""

import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

NAME = re.compile(r"shoal-(\d+)-(\d+)-(\d+)-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class Fleet:
    """All groups of one coordinator; its name has the pid, pid namespace and start time, and so is unique."""

    namespace: int
    pid: int
    started: int
    mark: str = field(default_factory=lambda: secrets.token_hex(2))

    @classmethod
    def ours(cls) -> "Fleet":
        """Name a new fleet of this process."""
        return cls(_namespace(), os.getpid(), start_ticks(os.getpid()) or 0)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"shoal-{self.namespace}-{self.pid}-{self.started}-{self.mark}"


def is_orphan(name: str) -> bool:
    """Return whether a folder is the fleet of a dead coordinator; `False` for other pid namespaces."""
    found = NAME.fullmatch(name)
    if found is None:
        return False
    namespace, pid, start = map(int, found.groups())
    return namespace == _namespace() and start_ticks(pid) != start


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; `None` if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
