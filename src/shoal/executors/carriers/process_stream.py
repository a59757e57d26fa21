"""A node's stream through a process on this machine: its standard input and output."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from shoal import proc
from shoal.executors.carriers.kind import BUFFER_BYTES, NodeStream
from shoal.model.command import Command
from shoal.proc.output import HeadTailBuffer

STDERR_BYTES = 4096
PAUSE = 0.005
RATE_BYTES = 2**30
COMPLAINT_CHARS = 300


class ProcessWriter:
    """Writes to a process's standard input, in order."""

    def __init__(self, process: proc.Process) -> None:
        self._process = process
        self._waiting: deque[bytes] = deque()
        self._turn = asyncio.Lock()  # keeps what was written first in front

    def write(self, data: bytes, /) -> None:
        """Take *data*."""
        self._waiting.append(data)

    async def drain(self) -> None:
        """Write all that is waiting; raise `BrokenPipeError` once nobody reads it."""
        async with self._turn:
            while self._waiting:
                await self._process.write(self._waiting.popleft())

    def close(self) -> None:
        """Close the input."""
        self._process.close_input()


@contextlib.asynccontextmanager
async def open_process_stream(
    command: Command, *, grace: float, is_node: bool, errors: HeadTailBuffer | None = None
) -> AsyncIterator[NodeStream]:
    """Run *command*, whose `stdin` is an `OpenInput`, and yield its stream; on leaving it gets *grace* to end.

    *is_node* says that the process is the node itself, so that its end is the node's end. *errors* gets its stderr.
    """
    reader, errors = asyncio.StreamReader(limit=BUFFER_BYTES), errors or HeadTailBuffer(STDERR_BYTES)
    has_ended = False

    def end() -> None:
        nonlocal has_ended
        has_ended = True

    def take(stream: proc.Stream, data: bytes) -> float | None:
        if stream is proc.Stream.STDERR:
            errors.feed(data)
            return None
        reader.feed_data(data)
        return PAUSE if _count_buffered(reader) > BUFFER_BYTES else None

    def complain() -> str:
        lines = errors.content().decode(errors="replace").strip().splitlines()
        return lines[-1][:COMPLAINT_CHARS] if lines else ""

    error: BaseException | None = None
    async with (
        asyncio.TaskGroup() as group,
        proc.open_process(command, sink=take, grace=grace, rate_bytes=RATE_BYTES, gone=end) as process,
    ):
        ending = group.create_task(_feed_end(process, reader))
        writer = ProcessWriter(process)
        try:
            yield NodeStream(reader=reader, writer=writer, has_died=lambda: is_node and has_ended, complaint=complain)
        except BaseException as raised:  # passed around the task group, which would wrap it
            error = raised
        finally:
            writer.close()
            ending.cancel()
    if error is not None:
        raise error


async def _feed_end(process: proc.Process, reader: asyncio.StreamReader) -> None:
    """Tell the reader of the end, after all output."""
    with contextlib.suppress(Exception):
        await process.wait()
    reader.feed_eof()


def _count_buffered(reader: asyncio.StreamReader) -> int:
    return len(reader._buffer)  # type: ignore[attr-defined]  # the only way to know; it has been there since 3.4
