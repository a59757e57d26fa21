"""`shoal mcp` as a client sees it: a process that speaks the protocol on its stdin and stdout."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import TextContent, TextResourceContents
from pydantic import AnyUrl

from tests.cli.conftest import SHOAL, environment
from tests.conftest import git

SECONDS = 60
GATED = """\
agents: {w: {adapter: scripted, script: [{write: {path: a.txt, content: "x\\n"}}, {say: "I \\e[31mam done"}]}}
steps: [{name: build, agent: w, prompt: go}, {name: ok, needs: [build], gate: "Ship it?"}]
"""
LEAVING = """\
agents: {w: {adapter: command, command: [sh, -c, "printf 'first \\\\033[31mred\\\\n' > plan.txt"]}}
steps: [{name: s, agent: w, prompt: go, output_artifacts: [{name: plan, path: plan.txt}]}]
"""
LONG = """\
agents: {w: {adapter: command, command: [sh, -c, "seq 20000 > n.txt; echo done"]}}
steps: [{name: s, agent: w, prompt: go}]
"""

Call = Callable[..., Awaitable[str]]


@contextlib.asynccontextmanager
async def open_client(repo: Path) -> AsyncIterator[ClientSession]:
    server = StdioServerParameters(command=str(SHOAL), args=["mcp"], cwd=repo, env=environment())
    async with (
        asyncio.timeout(SECONDS),
        stdio_client(server) as (reads, writes),
        ClientSession(reads, writes) as client,
    ):
        await client.initialize()
        yield client


def calls(client: ClientSession) -> Call:
    async def call(tool: str, **arguments: object) -> str:
        result = await client.call_tool(tool, arguments)
        text = "".join(part.text for part in result.content if isinstance(part, TextContent))
        assert not result.isError, text
        return text

    return call


async def refusal(client: ClientSession, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.isError
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def test_a_client_runs_agents_reads_their_work_and_merges_it(repo: Path) -> None:
    said: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        said.append(message)

    async with open_client(repo) as client:
        call = calls(client)
        run = json.loads(await call("run", tasks=["echo a > a.txt", "echo b > b.txt"], command="sh -s"))["run"]
        waited = await client.call_tool("wait", {"run": run}, progress_callback=note)
        assert isinstance(waited.content[0], TextContent)
        ended = json.loads(waited.content[0].text)
        first, second = ended["sessions"]
        diff = await call("diff", session=first["session"])
        preview = json.loads(await call("merge", preview=True))
        merged = json.loads(await call("merge", run=run, into="main", strategy="squash"))
        resource = await client.read_resource(AnyUrl(f"shoal://sessions/{second['session']}/diff"))

    assert (ended["run"], ended["status"]) == (run, "succeeded")
    assert sorted(message or "" for message in said) == sorted(
        f"{session['session']}: succeeded" for session in (first, second)
    )
    assert "+a" in diff
    assert sorted(preview["sessions"]) == sorted([first["session"], second["session"]])
    assert merged["delivery"]["status"] == "delivered"
    assert git(repo, "show", "main:b.txt") == "b"
    assert isinstance(resource.contents[0], TextResourceContents)
    assert "+b" in resource.contents[0].text


async def test_waiting_ends_at_a_gate_which_the_client_can_answer(repo: Path) -> None:
    (repo / "shoal.yaml").write_text(GATED)
    async with open_client(repo) as client:
        call = calls(client)
        await call("run", pipeline="shoal.yaml")
        waiting = json.loads(await call("wait"))
        log = await call("logs", session="build")
        await call("approve", message="looks good")
        ended = json.loads(await call("wait"))

    assert waiting["waiting"][0]["message"] == "Ship it?"
    assert waiting["status"] == "running"
    assert log.startswith("What follows was written by an agent.")
    assert "\x1b" not in log
    assert ended["status"] == "succeeded"


async def test_artifacts_are_resources(repo: Path) -> None:
    (repo / "shoal.yaml").write_text(LEAVING)
    async with open_client(repo) as client:
        call = calls(client)
        run = json.loads(await call("run", pipeline="shoal.yaml"))["run"]
        (session,) = json.loads(await call("wait"))["sessions"]
        address = f"shoal://runs/{run}/artifacts/{session['session']}"
        found = (await client.read_resource(AnyUrl(f"{address}/plan"))).contents[0]
        with pytest.raises(McpError, match="left no artifact"):
            await client.read_resource(AnyUrl(f"{address}/other"))

    assert session["artifacts"] == ["plan"]
    assert isinstance(found, TextResourceContents)
    assert found.text.startswith("What follows was written by an agent.")
    assert found.text.endswith("first \\x1b[31mred\n")


async def test_a_client_remembers_as_an_agent_and_recalls(repo: Path) -> None:
    async with open_client(repo) as client:
        call = calls(client)
        await call("remember", key="style", text="Use tabs")
        found = await call("recall", query="tabs")
        listed = await call("recall")

    assert '"trusted": false' in found
    assert "Use tabs" in listed


async def test_one_agent_is_stopped_and_a_wait_has_an_end(repo: Path) -> None:
    async with open_client(repo) as client:
        call = calls(client)
        await call("run", tasks=["echo part > part.txt; sleep 600"], command="sh -s")
        still = json.loads(await call("wait", timeout_seconds=1))
        session = still["sessions"][0]["session"]
        await call("stop", target=session)
        ended = json.loads(await call("wait"))

    assert still["status"] == "running"
    assert ended["sessions"][0]["status"] == "cancelled"


@pytest.mark.deep
async def test_long_texts_come_in_pages(repo: Path) -> None:
    (repo / "shoal.yaml").write_text(LONG)
    async with open_client(repo) as client:
        call = calls(client)
        await call("run", pipeline="shoal.yaml")
        await call("wait")
        first = await call("diff")
        offset = int(first.rpartition("offset=")[2].rstrip("]"))
        second = await call("diff", offset=offset)

    assert len(first) < 21_000
    lines = first.partition("\n\n[")[0].splitlines()
    assert "+1000" in lines
    assert second.splitlines()[3] not in lines


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("run", {}, "give `tasks`, or a `pipeline`"),
        ("run", {"tasks": ["x"], "agent": "nobody"}, "nobody"),
        ("status", {"run": "--version"}, "there is no run yet"),
        ("wait", {"run": "nothing-like-it"}, "there is no run yet"),
        ("merge", {"sessions": ["x"]}, "name the run"),
        ("send", {"session": "none", "text": "hello"}, "there is no session yet"),
    ],
)
async def test_a_mistake_is_an_error_that_says_what_is_wrong(
    repo: Path, tool: str, arguments: dict[str, Any], words: str
) -> None:
    async with open_client(repo) as client:
        assert words in await refusal(client, tool, **arguments)


async def test_tools_say_what_they_may_change_and_are_short(repo: Path) -> None:
    async with open_client(repo) as client:
        listed = (await client.list_tools()).tools

    assert {"run", "status", "wait", "logs", "diff", "merge", "stop", "cancel", "approve", "send", "agents"} <= {
        tool.name for tool in listed
    }
    assert all(tool.annotations and tool.description for tool in listed)
    assert sum(len(tool.model_dump_json(exclude_none=True)) for tool in listed) < 12_000
