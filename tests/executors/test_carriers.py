"""What carriers promise: bytes arrive in order in both directions, and an end is seen."""

import asyncio
from pathlib import Path

from shoal.executors.carriers.process_stream import open_process_stream
from shoal.model.command import Command, OpenInput

ECHO = Command(argv=("cat",), cwd=Path("/"), env={"PATH": "/usr/bin:/bin"}, stdin=OpenInput())


async def test_bytes_come_back_in_order_and_memory_stays_small() -> None:
    sent = [bytes([number % 256]) * 100_000 for number in range(60)]
    async with asyncio.timeout(60), open_process_stream(ECHO, grace=1.0, is_node=True) as stream:

        async def send() -> None:
            for block in sent:
                stream.writer.write(block)
                await stream.writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            received = [await stream.reader.readexactly(len(block)) for block in sent]

    assert received == sent


async def test_the_end_of_the_process_ends_the_stream_and_is_known() -> None:
    command = Command(argv=("sh", "-c", "echo bye; echo no room >&2"), cwd=Path("/"), env=ECHO.env, stdin=OpenInput())
    async with asyncio.timeout(60), open_process_stream(command, grace=1.0, is_node=True) as stream:
        assert await stream.reader.read() == b"bye\n"

        assert stream.has_died()
        assert stream.complaint() == "no room"
