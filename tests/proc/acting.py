"""Processes to start in tests, and sinks for their output."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from shoal.model.command import Argument, Command
from shoal.proc import LineSplitter, Sink, Stream

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


MIB = 2**20


def sh(script: str, *arguments: Argument, stdin: bytes = b"") -> Command:
    # bash, because dash cannot redirect to descriptors above 9
    return Command(argv=("bash", "-c", script, "bash", *arguments), cwd=Path("/"), env=PATH, stdin=stdin)


def python(script: str, stdin: bytes = b"") -> Command:
    return Command(argv=(sys.executable, "-ISc", script), cwd=Path("/"), env=PATH, stdin=stdin)


class Heard:
    """A sink that keeps stdout and tells when a word was said."""

    def __init__(self) -> None:
        self.stdout = b""
        self._more = asyncio.Event()

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        if stream is Stream.STDOUT:
            self.stdout += chunk
            self._more.set()

    async def said(self, word: bytes) -> bytes:
        async with asyncio.timeout(10):
            while word not in self.stdout:
                self._more.clear()
                await self._more.wait()
        return self.stdout


class Count:
    """A sink that only counts."""

    def __init__(self) -> None:
        self.size = 0

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        self.size += len(chunk)


def fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def watched(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def by_line(lines: LineSplitter) -> Sink:
    return lambda _, chunk: lines.feed(chunk)
