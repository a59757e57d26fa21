"""The messages between Shoal and an agent: bounded in size, and only if they have the protocol's form."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from shoal.sessions.sandboxed import SandboxedProcess

MOST_UNANSWERED = 64
MAX_UNANSWERED_CHARS = 32 * 2**20
Message = Mapping[str, object]


class AnswersUnread(Exception):
    """The agent keeps asking without reading the answers."""


class AcpWire:
    """A transport for the protocol's SDK; a session's updates do not go through it."""

    def __init__(self, sandboxed: SandboxedProcess) -> None:
        self._sandboxed = sandboxed
        self._inbox: deque[dict[str, Any]] = deque()
        self._more = asyncio.Event()
        self._unanswered: dict[object, list[int]] = {}  # an agent may use one id for several requests
        self._waiting = self._chars = 0
        self._is_ended = False

    def accept(self, message: dict[str, Any], chars: int) -> None:
        """Take a request of the agent, or its answer to one of ours; raises `AnswersUnread`."""
        if "method" in message:
            self._unanswered.setdefault(message["id"], []).append(chars)
            self._count(1, chars)
        if self._waiting > MOST_UNANSWERED or self._chars > MAX_UNANSWERED_CHARS:
            raise AnswersUnread
        self._inbox.append(message)
        self._more.set()

    def end(self) -> None:
        """Accept nothing more, and tell everybody who waits for an answer."""
        self._is_ended = True
        self._more.set()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; `None` at the end."""
        while not self._inbox and not self._is_ended:
            self._more.clear()
            await self._more.wait()
        return self._inbox.popleft() if self._inbox else None

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message as fast as the agent reads; an answer that is no longer read is not an error."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if "method" in message:
            await self._sandboxed.write(line)
            return
        with contextlib.suppress(OSError):
            await self._sandboxed.write(line)
        self._note_answer(message["id"])

    async def close(self) -> None:
        """Close it."""
        self.end()

    def _note_answer(self, name: object) -> None:
        if waiting := self._unanswered.get(name):
            self._count(-1, -waiting.pop(0))
            if not waiting:
                del self._unanswered[name]

    def _count(self, questions: int, chars: int) -> None:
        self._waiting += questions
        self._chars += chars


def is_update(message: Message) -> bool:
    """Return whether *message* is a session update."""
    return message.get("method") == "session/update" and "id" not in message


def is_request(message: Message) -> bool:
    """Return whether *message* expects an answer."""
    return isinstance(message.get("method"), str) and isinstance(message.get("id"), int | str)


def is_answer(message: Message) -> bool:
    """Return whether *message* answers one of our requests."""
    is_error = isinstance(message.get("error"), dict)
    return "method" not in message and type(message.get("id")) is int and (is_error or "result" in message)
