"""A hub of a run with a ledger, whose agents are reached on loopback instead of in sandboxes."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.gateway.arrivals import serve_listener
from shoal.model.events import Event
from shoal.model.masking import Mask
from shoal.model.talk import TalkGrant
from shoal.sessions.session_control import Inbox
from shoal.sessions.talking import InboxPostbox
from shoal.store.ledger import open_ledger
from shoal.store.notes import notes_at
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at
from shoal.talk.hub import Peer, TalkHub
from shoal.talk.server import serve_peer

MESSAGE = TalkGrant(message=True)


@dataclass
class Scene:
    """A hub, and the ports of its agents by their names."""

    hub: TalkHub
    paths: StatePaths
    events: list[Event]
    ports: dict[str, int]
    peers: dict[str, Peer]
    callers: "list[Caller]"

    def client(self, name: str, token: str | None = None) -> "Caller":
        caller = Caller(self.ports[name], self.peers[name].token if token is None else token)
        self.callers.append(caller)
        return caller

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@contextlib.asynccontextmanager
async def open_scene(
    tmp_path: Path, *names: str, grant: TalkGrant = MESSAGE, keeps_events: bool = True
) -> AsyncIterator[Scene]:
    """Open a hub with the agents *names*."""
    paths = StatePaths.of(tmp_path)
    events: list[Event] = []
    async with open_ledger(store_at(paths)) as ledger, asyncio.TaskGroup() as group:
        if keeps_events:
            ledger.subscribe(lambda recorded: events.append(recorded.event))
        scene = Scene(TalkHub("run-1", ledger, Mask(), notes_at(paths)), paths, events, {}, {}, [])
        tasks = []
        with contextlib.ExitStack() as held:
            for name in names:
                peer = Peer(name=name, session=f"{name}-1", grant=grant, postbox=InboxPostbox(Inbox(), False))
                scene.peers[name] = held.enter_context(scene.hub.hold_peer(peer))
                listener = socket.create_server(("127.0.0.1", 0), backlog=128)
                scene.ports[name] = listener.getsockname()[1]
                tasks.append(group.create_task(serve_listener(listener, serve_peer(scene.hub, peer))))
            try:
                yield scene
            finally:
                for caller in scene.callers:
                    await caller.close()
                for task in tasks:
                    task.cancel()


class Caller:
    """Calls tools on one connection, as an agent does."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes, *headers: str) -> tuple[int, bytes]:
        """Send a request, and return the status and body of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        lines = ["POST /mcp HTTP/1.1", "Host: x", f"Authorization: Bearer {self.token}", *headers]
        writer.write("\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        answer = await reader.readexactly(length)
        if "connection: close" in head:
            await self.close()
        return int(head.split(" ")[1]), answer

    async def call(self, tool: str, **arguments: object) -> str:
        """Call a tool, and return its text; a refusal begins with `refused: `."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        status, body = await self.post(json.dumps(message).encode())
        assert status == 200, body
        result = json.loads(body)["result"]
        text = result["content"][0]["text"]
        return f"refused: {text}" if result["isError"] else str(text)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
