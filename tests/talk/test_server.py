"""The server of agents that talk: any MCP client can use it, and nobody can be somebody else."""

import asyncio
import json
from pathlib import Path

import httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent

from shoal.model.talk import MessageSent, TalkRefused
from tests.talk.hubs import open_scene


async def test_a_client_of_the_official_sdk_lists_and_calls_the_tools(tmp_path: Path) -> None:
    async with asyncio.timeout(60), open_scene(tmp_path, "ann", "ben") as scene:
        token = scene.peers["ann"].token
        async with (
            httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            streamable_http_client(f"http://127.0.0.1:{scene.ports['ann']}/mcp", http_client=http) as (
                reads,
                writes,
                _,
            ),
            ClientSession(reads, writes) as client,
        ):
            begun = await client.initialize()
            tools = await client.list_tools()
            result = await client.call_tool("send", {"to": "ben", "text": "hello"})
            refused = await client.call_tool("send", {"to": "bem", "text": "hello"})
        read = await scene.client("ben").call("inbox")

    assert begun.serverInfo.name == "shoal"
    assert {"agents", "send", "broadcast", "ask", "reply", "inbox"} <= {tool.name for tool in tools.tools}
    assert isinstance(result.content[0], TextContent)
    assert (result.isError, result.content[0].text) == (False, "sent as ann:1")
    assert refused.isError
    assert read.startswith("Message ann:1 from the agent ann")
    assert read.endswith("> hello")


async def test_a_token_is_worth_nothing_in_another_sandbox(tmp_path: Path) -> None:
    async with asyncio.timeout(60), open_scene(tmp_path, "ann", "ben", "eve") as scene:
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "send", "arguments": {"to": "ben", "text": "x"}},
        }
        body = json.dumps(call).encode()
        stolen, _ = await scene.client("eve", scene.peers["ann"].token).post(body)
        guessed, _ = await scene.client("eve", "talk-0").post(body)
        none, _ = await scene.client("eve", "").post(body)
        own = await scene.client("eve").call("send", to="ben", text="I am ann")

    refusals = scene.of(TalkRefused)
    assert (stolen, guessed, none) == (401, 401, 401)
    assert own == "sent as eve:1"
    assert [message.sender for message in scene.of(MessageSent)] == ["eve"], "whatever it says"
    assert refusals[0].session == "eve-1"
    assert refusals[0].why == "this is the token of another session"


async def test_a_tool_that_is_not_granted_does_not_exist(tmp_path: Path) -> None:
    async with asyncio.timeout(60), open_scene(tmp_path, "ann") as scene:
        ann = scene.client("ann")
        unknown = await ann.call("spawn", task="x")
        wrong = await ann.call("send", to="ben", txt="x")
        kind = await ann.call("inbox", most="many")
        missing = await ann.call("send", to="ben")

    assert unknown.startswith("refused: no tool named 'spawn'")
    assert wrong == "refused: no parameter of `send` named 'txt'; did you mean 'text'?"
    assert kind == "refused: `most` of `inbox` must be a whole number, not 'many'"
    assert missing == "refused: `send` needs `text`"


async def test_requests_that_are_none_are_refused(tmp_path: Path) -> None:
    async with asyncio.timeout(60), open_scene(tmp_path, "ann") as scene:
        answers = [
            (await scene.client("ann").post(body))[0]
            for body in (b"{", b"[]", b"1", b'{"id":1}', b"[" * 100_000, b"x" * 2**20)
        ]
        too_large = (await scene.client("ann").post(b"x" * (2**20 + 1)))[0]
        alive = await scene.client("ann").call("agents")

    assert answers == [200, 202, 200, 200, 200, 200]
    assert too_large == 413
    assert alive.startswith("You are ann.")
