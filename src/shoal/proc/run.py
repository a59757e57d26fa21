"""A command run to its end, with bounded output."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from shoal.errors import Broken
from shoal.model.command import Command
from shoal.proc.output import HeadBuffer, HeadTailBuffer
from shoal.proc.process import Exit, Sink, open_process
from shoal.proc.spawn import Stream

STDERR_BYTES = 64 * 1024  # of its head, and as much of its tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that has ended; *dropped* counts the bytes of its stdout that were not kept."""

    exit: Exit
    stdout: bytes
    stderr: bytes
    dropped: int

    @property
    def ok(self) -> bool:
        """Return whether it exited with 0."""
        return self.exit.code == 0


async def run(command: Command, *, timeout: float, limit: int = 8 * 2**20) -> Completed:
    """Run *command* to its end; raise TimeoutError, after having ended everything, when it takes too long."""
    stdout, stderr = HeadBuffer(limit), HeadTailBuffer(STDERR_BYTES)
    async with asyncio.timeout(timeout), open_process(command, sink=_split(stdout.feed, stderr.feed)) as process:
        ended = await process.wait()
    return Completed(exit=ended, stdout=stdout.content(), stderr=stderr.content(), dropped=stdout.dropped)


async def run_into(command: Command, target: BinaryIO, *, timeout: float, limit: int) -> Completed:
    """Run *command* with its stdout streamed to *target*; past *limit* bytes it is killed and *dropped* is above 0."""
    spool, stderr = _Spool(target, limit), HeadTailBuffer(STDERR_BYTES)
    async with asyncio.timeout(timeout), open_process(command, sink=_split(spool.feed, stderr.feed)) as process:
        spool.overflowed = process.kill
        ended = await process.wait()
    spool.flush()
    return Completed(exit=ended, stdout=b"", stderr=stderr.content(), dropped=spool.dropped)


def _split(stdout: Callable[[bytes], None], stderr: Callable[[bytes], None]) -> Sink:
    def sink(stream: Stream, chunk: bytes) -> None:
        match stream:
            case Stream.STDOUT:
                stdout(chunk)
            case Stream.STDERR:
                stderr(chunk)

    return sink


class _Spool:
    """Write the first *limit* bytes to a file, and report when there are more."""

    def __init__(self, target: BinaryIO, limit: int) -> None:
        self._target = target
        self._left = limit
        self.dropped = 0
        self.overflowed: Callable[[], None] = lambda: None

    def feed(self, chunk: bytes) -> None:
        kept = memoryview(chunk)[: self._left]
        self._left -= len(kept)
        self._write(kept)
        if len(chunk) > len(kept):
            self.dropped += len(chunk) - len(kept)
            self.overflowed()

    def flush(self) -> None:
        with self._told():
            self._target.flush()

    def _write(self, view: memoryview) -> None:
        with self._told():
            while view:  # an unbuffered file may take less than it is given
                view = view[self._target.write(view) :]

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Broken(f"the output could not be written to {self._target.name}: {error.strerror}") from error
