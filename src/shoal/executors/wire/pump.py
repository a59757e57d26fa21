"""Carry a connection over a channel: its bytes in both directions, and the end of each."""

import asyncio
import contextlib

from shoal.errors import Broken
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.link import NodeLink

CHUNK_BYTES = 64 * 2**10


async def pump(link: NodeLink, channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes until both directions have ended, or one of them broke; the connection is closed then."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_send(channel, reader))
            group.create_task(_receive(channel, writer))
    except* (OSError, Broken):
        pass  # whoever waits for an answer sees that the connection is closed
    finally:
        link.break_off(channel)  # which changes nothing where both directions have ended
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _send(channel: Channel, reader: asyncio.StreamReader) -> None:
    while content := await reader.read(CHUNK_BYTES):
        await channel.write(content)
    await channel.finish()


async def _receive(channel: Channel, writer: asyncio.StreamWriter) -> None:
    while content := await channel.read():
        writer.write(content)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
