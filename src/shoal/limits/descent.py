"""The processes below one, read from /proc."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Seen:
    """One process: its threads, the memory it has in use (shared pages too), and its CPU with that of its dead."""

    pid: int
    threads: int
    resident_bytes: int
    cpu_seconds: float


def descent(roots: Iterable[int]) -> Iterator[Seen]:
    """Give *roots* and all below them, a process before its children."""
    rest = list(roots)
    while rest:
        pid = rest.pop()
        if (seen := _seen(pid)) is not None:
            yield seen
            rest += _children(pid)


def proportional_bytes(pid: int) -> int:
    """Give the memory of a process with each shared page divided among its users; 0 when it is gone."""
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/smaps_rollup").open() as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Pss:", "SwapPss:")))
    return 0


def _seen(pid: int) -> Seen | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    words = stat.rpartition(b")")[2].split()  # the name in front may hold anything; words[0] is field 3
    spent = sum(map(int, words[11:15]))
    return Seen(pid, threads=int(words[17]), resident_bytes=int(words[21]) * PAGE, cpu_seconds=spent * TICK)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found
