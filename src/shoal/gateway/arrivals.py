"""Serve connections no faster than one sandbox may open them: a flood waits in the sandbox's own queue."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

MOST_CONNECTIONS = 128
CONNECTIONS_EACH_SECOND = 100.0
BURST = 100.0
HEAD_BYTES = 64 * 1024

ServeConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ArrivalRate:
    """Limits arrivals to a rate after an initial burst; connections beyond it wait."""

    def __init__(self, each_second: float) -> None:
        self._each_second = each_second
        self._left = BURST
        self._at = time.monotonic()

    async def wait(self) -> None:
        """Wait until the next connection may be accepted."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._at) * self._each_second) - 1
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._each_second)


async def serve_listener(listener: socket.socket, serve: ServeConnection) -> None:
    """Serve the connections of *listener*, a limited number at a time, until cancelled; *serve* closes each."""
    loop = asyncio.get_running_loop()
    rate, room = ArrivalRate(CONNECTIONS_EACH_SECOND), asyncio.Semaphore(MOST_CONNECTIONS)
    listener.setblocking(False)
    with listener:
        async with asyncio.TaskGroup() as group:
            while True:
                await room.acquire()
                await rate.wait()
                try:
                    end, _ = await loop.sock_accept(listener)
                except OSError:  # no descriptors left: other connections will close theirs
                    room.release()
                    await asyncio.sleep(0.1)
                else:
                    group.create_task(_serve_end(end, serve, room))


async def serve_connection(end: socket.socket, serve: ServeConnection, room: asyncio.Semaphore) -> None:
    """Serve a connection that was accepted elsewhere; where *room* is full, it is closed at once."""
    if room.locked():
        end.close()
        return
    await room.acquire()
    await _serve_end(end, serve, room)


async def _serve_end(end: socket.socket, serve: ServeConnection, room: asyncio.Semaphore) -> None:
    try:
        if end.family is not socket.AF_UNIX:
            # asyncio sets this only for sockets that name their protocol; an answer may wait 40 ms for an ACK without
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=end, limit=HEAD_BYTES)
        await serve(reader, writer)
    except OSError:
        end.close()
    except Exception as error:  # bad input ends the agent's own connection, never the gateway that all agents share
        end.close()
        asyncio.get_running_loop().call_exception_handler({"message": "a connection failed", "exception": error})
    finally:
        room.release()
