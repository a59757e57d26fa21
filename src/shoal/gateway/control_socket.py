"""Messages between our processes, with open descriptors attached."""

import asyncio
import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
LARGEST_BYTES = 128 * 1024
MOST_DESCRIPTORS = 16
MOST_WAITING = 10_000


class ControlSocket:
    """One end of a pair of sockets that keep messages apart.

    *receive* gets each message with its descriptors, which are then its own to close; *closed* is called once when
    the other end is gone. Messages that the other end does not read wait, and above a limit are dropped.
    """

    def __init__(
        self, end: socket.socket, receive: Callable[[Message, list[int]], None], closed: Callable[[], None]
    ) -> None:
        self._end = end
        self._receive = receive
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, Sequence[int]]] = deque()
        self.is_open = True
        self.dropped = 0
        end.setblocking(False)
        self._loop.add_reader(end, self._read)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Queue *message*; the *descriptors* are closed here once they are sent or cannot be sent."""
        text = json.dumps(message).encode()
        if len(text) > LARGEST_BYTES:
            _close_all(descriptors)
            raise ValueError(f"a message of {len(text)} bytes is too large for a control socket")
        if not self.is_open or len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            _close_all(descriptors)
            return
        self._waiting.append((text, descriptors))
        self._write()

    def close(self) -> None:
        """Stop receiving and sending; a second call does nothing."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._end)
            self._loop.remove_writer(self._end)
            for _, descriptors in self._waiting:
                _close_all(descriptors)
            self._waiting.clear()

    def _write(self) -> None:
        while self._waiting:
            text, descriptors = self._waiting[0]
            try:
                socket.send_fds(self._end, [text], descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._end, self._write)
                return
            except OSError:
                self._end_here()
                return
            self._waiting.popleft()
            _close_all(descriptors)
        self._loop.remove_writer(self._end)

    def _read(self) -> None:
        try:
            text, descriptors, _, _ = socket.recv_fds(self._end, LARGEST_BYTES, MOST_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            text, descriptors = b"", []
        if text:
            self._receive(json.loads(text), descriptors)
        else:
            self._end_here()

    def _end_here(self) -> None:
        if self.is_open:
            self.close()
            self._closed()


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
