"""Scripts in the prompt."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.model import ModelServer, Use
from shoal.testing.model.tools import call
from tests.testing.asking import SHELL, TOOLS, asking

READ = {"type": "object", "properties": {"file_path": {"type": "string"}}}
EDIT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("file_path", "old_string", "new_string")},
}
ALL = {**TOOLS, "Read": READ, "Edit": EDIT}


@pytest.mark.parametrize(
    ("written", "steps"),
    [
        ("write", ["Write", "Done."]),
        ("shell", ["Bash", "Done."]),
        ("both", ["Write", "Bash", "Done."]),
        ("together", ["Write", "Bash", "Done."]),
        ("edit", ["Read", "Edit", "Done."]),
        ("sleep sec=0", ["Bash", "Done."]),
        ("loop", ["Bash"] * 5),
        ("unknown_tool", ["NoSuchTool", "Done."]),
        ("call tool=Read args=%7B%22file_path%22%3A%22x%22%7D", ["Read", "Done."]),
        ("text", ["A plain answer."]),
        ("text say=a%20b", ["a b"]),
        ("slow ms=0", ["slow " * 20]),
        ("wholefile file=a content=b%0A", ["Here it is.\n\na\n```\nb\n```\n"]),
    ],
)
async def test_a_scenario_is_played(written: str, steps: list[str]) -> None:
    async with ModelServer() as server, asking(server, ALL) as client:
        assert await client.prompt(f"Please. [[s:{written}]] Thank you.") == steps


@pytest.mark.parametrize(
    ("written", "statuses"),
    [
        *((f"err{status}", [status] * 3) for status in (400, 401, 429, 500, 529)),
        ("err500once", [500, 200, 200]),
        ("err500once n=2", [500, 500, 200]),
        ("err429once", [429, 200, 200]),
        ("err429once stream=1", [429, 200, 200]),
        ("overflow", [400, 400, 400]),
        ("nonsense", [400, 400, 400]),
        ("call", [400, 400, 400]),
        ("call tool=x args=no", [400, 400, 400]),
        ("text ms=x", [400, 400, 400]),
    ],
)
async def test_a_refusal_is_held(written: str, statuses: list[int]) -> None:
    async with ModelServer() as server, asking(server) as client:
        client.messages.append({"role": "user", "content": f"[[s:{written}]]"})
        assert [(await client.post()).status_code for _ in range(3)] == statuses


async def test_the_newest_directive_wins_and_counts_from_there() -> None:
    async with ModelServer() as server, asking(server) as client:
        assert await client.prompt("[[s:both]]") == ["Write", "Bash", "Done."]
        assert await client.prompt("[[s:text]] or [[s:shell]]") == ["Bash", "Done."]
        assert await client.prompt("no directive") == ["ok"]


async def test_without_a_directive_it_says_ok() -> None:
    async with ModelServer() as server, asking(server) as client:
        assert await client.prompt("hello") == ["ok"]


async def test_tokens_and_what_the_tools_get_are_in_the_directive() -> None:
    async with ModelServer() as server, asking(server) as client:
        client.messages.append({"role": "user", "content": "[[s:write cwd=/w file=a content=b in=70 out=3]]"})
        message = await client.step()

    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"file_path": "/w/a", "content": "b"}
    assert (server.usage.input, server.usage.output) == (70, 3)


def test_the_arguments_are_those_of_the_tools_own_schema() -> None:
    choice = {"type": "string", "enum": ["view", "create"]}
    editor = {"properties": {"command": choice, "path": {}, "file_text": {}, "mode": {"type": ["integer"]}}}
    editor["required"] = ["command", "mode"]  # type: ignore[assignment]
    listed = {"properties": {"command": {"type": "array"}, "workdir": {"type": "string"}}}

    assert call(Use("write", {"path": "a", "content": "b"}), {"editor": editor}).arguments == {
        "command": "create",
        "path": "a",
        "file_text": "b",
        "mode": 1000,
    }
    assert call(Use("shell", {"cmd": "ls", "workdir": "/"}), {"shell": listed}).arguments == {
        "command": ["bash", "-lc", "ls"],
        "workdir": "/",
    }
    assert call(
        Use("shell", {"command": "ls"}), {"run_commands": {"properties": {"commands": {"type": "array"}}}}
    ).arguments == {"commands": ["ls"]}
    assert call(Use("Other", {"a": 1}), {}).arguments == {"a": 1}


@pytest.mark.parametrize("content", ["it's\n", "%s $HOME `x`\n", "two\nlines"])
def test_a_client_with_a_shell_alone_writes_reads_and_edits_by_it(tmp_path: Path, content: str) -> None:
    path = str(tmp_path / "a 'file'")

    def run(tool: str, **arguments: str) -> str:
        made: Any = call(Use(tool, {"path": path, **arguments}), {"Bash": SHELL}).arguments
        return subprocess.run(["sh", "-c", made["command"]], capture_output=True, text=True, check=True).stdout

    run("write", content=content)
    assert run("read") == content
    run("edit", old=content, new="changed")
    assert run("read") == "changed"
