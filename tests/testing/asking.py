"""Requests like a client's, in OpenAI's chat format."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from shoal.testing.model import ModelServer

Said = dict[str, Any]
SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
WRITE = {"type": "object", "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}}}
TOOLS = {"Bash": SHELL, "Write": WRITE}


class Client:
    """A client that keeps its conversation, and tools that always give `ran`."""

    def __init__(self, http: httpx2.AsyncClient, tools: dict[str, Any] = TOOLS) -> None:
        self.http = http
        self.messages: list[Said] = []
        self._tools = [{"type": "function", "function": {"name": name, "parameters": tools[name]}} for name in tools]

    def body(self, *, is_stream: bool = False) -> Said:
        return {"model": "m", "messages": self.messages, "tools": self._tools, "stream": is_stream}

    async def post(self, *, is_stream: bool = False) -> httpx2.Response:
        return await self.http.post("/v1/chat/completions", json=self.body(is_stream=is_stream))

    async def step(self) -> Said:
        """Ask once, and keep the answer with the results of its tools."""
        response = await self.post()
        assert response.status_code == 200, response.text
        message: Said = response.json()["choices"][0]["message"]
        self.messages.append(message)
        for call in message.get("tool_calls", []):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "ran"})
        return message

    async def prompt(self, text: str, *, most: int = 5) -> list[str]:
        """Ask until no more tools are wanted; name each tool and give the last text."""
        self.messages.append({"role": "user", "content": text})
        steps: list[str] = []
        for _ in range(most):
            message = await self.step()
            steps += [call["function"]["name"] for call in message.get("tool_calls", [])]
            if "tool_calls" not in message:
                return [*steps, message["content"]]
        return steps


@contextlib.asynccontextmanager
async def asking(server: ModelServer, tools: dict[str, Any] = TOOLS) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=20) as http:
        yield Client(http, tools)
