"""The sandboxed tools, in a real session in the real sandbox."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic_ai.exceptions import ToolFailed

from shoal import IsolatedAgentSession
from shoal.agent.sandboxed import READ_BYTES, SHELL_CHARACTERS, WORD_BYTES, sandboxed_tools

Tools = dict[str, Callable[..., Awaitable[str]]]


@asynccontextmanager
async def tools_of(repo: Path) -> AsyncIterator[tuple[Tools, Path]]:
    async with IsolatedAgentSession("tools", repo) as session:
        yield {tool.name: tool.function for tool in sandboxed_tools(session)}, session.workspace


async def test_files_are_written_read_edited_listed_and_found(repo: Path) -> None:
    async with tools_of(repo) as (tools, files):
        await tools["write"]("new/deep/file.txt", "alpha\nbeta\n\ngamma")
        await tools["edit"]("new/deep/file.txt", "beta\n\ngam", "two\nlines & \\n more ")

        assert (files / "new/deep/file.txt").read_bytes() == b"alpha\ntwo\nlines & \\n more ma"
        assert await tools["read"]("new/deep/file.txt") == "alpha\ntwo\nlines & \\n more ma\n"
        assert await tools["read"]("new/deep/file.txt", 2, 1) == "two\n[lines 2 to 2 of 3]"
        assert (await tools["list"]()).splitlines() == [".git", "README.md", "d0/", "new/"]
        assert await tools["list"]("new") == "deep/"
        assert await tools["search"]("^li.es") == "./new/deep/file.txt:3:lines & \\n more ma"
        assert await tools["search"]("no such words") == "no match"


async def test_an_edit_keeps_line_ends_modes_and_what_is_around_it(repo: Path) -> None:
    async with tools_of(repo) as (tools, files):
        (files / "crlf.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
        (files / "run.sh").write_bytes("#!/bin/sh\necho äöü\n\n\n".encode())
        (files / "run.sh").chmod(0o755)
        (files / "big.txt").write_text("line\n" * 100_000 + "here\n" + "line\n" * 100_000)
        await tools["edit"]("crlf.txt", "one\ntwo", "1\n2")
        await tools["edit"]("run.sh", "äö", "ö")
        await tools["edit"]("big.txt", "here", "there")

        assert (files / "crlf.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"
        assert (files / "run.sh").read_bytes() == "#!/bin/sh\necho öü\n\n\n".encode()
        assert (files / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (files / "big.txt").read_text() == "line\n" * 100_000 + "there\n" + "line\n" * 100_000


async def test_what_cannot_be_done_is_told_to_the_model(repo: Path) -> None:
    async with tools_of(repo) as (tools, files):
        (files / "twice.txt").write_text("aaa\n")
        (files / "binary").write_bytes(b"a\0b")
        for name, arguments, sentence in [
            ("read", ["no.txt"], "there is no file no.txt"),
            ("read", ["d0"], "d0 is not a file"),
            ("edit", ["no.txt", "a", "b"], "there is no file no.txt"),
            ("edit", ["twice.txt", "aa", "b"], "more than once"),
            ("edit", ["twice.txt", "b", "c"], "is not in twice.txt"),
            ("edit", ["twice.txt", "", "c"], "old text is empty"),
            ("edit", ["binary", "b", "c"], "not a text file"),
            ("list", ["no"], "there is no folder no"),
            ("search", ["("], "grep"),
            ("search", ["x", "no"], "there is no file or folder no"),
            ("write", ["README.md/x", "x"], "README.md"),
            ("read", ["a\0b"], "NUL"),
            ("read", ["a\ud800b"], "incomplete character"),
            ("shell", ["echo a\0b"], "NUL"),
            ("shell", [f"echo {'x' * WORD_BYTES}"], "longer than 100000 bytes"),
            ("search", ["x" * 2 * WORD_BYTES], "longer than 100000 bytes"),
        ]:
            with pytest.raises(ToolFailed, match=sentence):
                await tools[name](*arguments)


async def test_strange_names_and_texts_are_taken_as_they_are(repo: Path) -> None:
    names = ["-rf", "-", "new\nline", "a b", "$(touch pwned)", "it's", 'q"q', "ünï", "-n"]
    async with tools_of(repo) as (tools, files):
        for name in names:
            await tools["write"](name, f"-e {name}\n")
            await tools["edit"](name, "-e ", "%s \\1 ")

        assert [(files / name).read_text() for name in names] == [f"%s \\1 {name}\n" for name in names]
        assert not (files / "pwned").exists()
        assert [await tools["read"](name) for name in names] == [f"%s \\1 {name}\n" for name in names]
        assert await tools["search"]("-e", "a b") == "no match"
        await tools["write"]("empty", "")
        assert await tools["read"]("empty") == ""


async def test_the_wall_holds_for_every_tool(repo: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("secret\n")
    async with tools_of(repo) as (tools, files):
        (files / "link").symlink_to(outside)
        with pytest.raises(ToolFailed, match="there is no file"):
            await tools["read"](str(outside))
        with pytest.raises(ToolFailed, match="there is no file"):
            await tools["read"]("link")
        with pytest.raises(ToolFailed):
            await tools["write"](str(outside), "mine")
        with pytest.raises(ToolFailed):
            await tools["write"]("/usr/mine", "mine")
        assert "secret\n" not in await tools["shell"](f"cat {outside} link")

    assert outside.read_text() == "secret\n"


async def test_what_comes_back_is_bounded(repo: Path) -> None:
    async with tools_of(repo) as (tools, files):
        (files / "long.txt").write_text("0123456789\n" * 50_000)
        (files / "bytes").write_bytes(b"\xff\xfe\x00ok\n")
        text = await tools["read"]("long.txt", 1, 50_000)
        said = await tools["shell"]("cat long.txt; exit 7")

        assert READ_BYTES <= len(text) <= READ_BYTES + 100
        assert text.endswith("of 50000; lines 1 to 3637 are shown]")
        assert said.startswith("exit code 7\n")
        assert "left out]" in said
        assert len(said) < SHELL_CHARACTERS + 200
        assert "ok" in await tools["read"]("bytes")
        assert "[more matches" in await tools["search"]("123")
        assert "ended after" in await tools["shell"]("echo before; sleep 100", 0.5)


async def test_a_part_of_a_file_says_which_part_it_is(repo: Path) -> None:
    async with tools_of(repo) as (tools, files):
        (files / "two.txt").write_text("one\ntwo\n")
        (files / "line.txt").write_text("ä" * READ_BYTES + "\nlast\n")

        assert await tools["read"]("two.txt", -5, -5) == "one\n[lines 1 to 1 of 2]"
        assert await tools["read"]("two.txt", 10**30, 5) == "[there is no line 1000000000: the file has 2]"
        assert await tools["read"]("two.txt", 3) == "[there is no line 3: the file has 2]"
        assert (await tools["read"]("line.txt")).endswith("\n[cut off in line 1 of 2; lines 1 to 1 are shown]")
        assert await tools["read"]("line.txt", 2) == "last\n"


async def test_the_rules_of_a_session_hold_for_its_tools(repo: Path) -> None:
    rules = {"allowed_tools": ["Read", "shell(ls*)"], "deny": ["read(d0/*)"]}
    async with IsolatedAgentSession("tools", repo, permissions=rules) as session:
        tools: Tools = {tool.name: tool.function for tool in sandboxed_tools(session)}

        assert await tools["read"](path="README.md") == "scratch\n"
        assert "README.md" in await tools["shell"](command="ls")
        for name, arguments in [
            ("read", {"path": "d0/f0.txt"}),
            ("shell", {"command": "rm README.md"}),
            ("write", {"path": "new", "content": "x"}),
        ]:
            with pytest.raises(ToolFailed, match=f"{name} is not allowed here"):
                await tools[name](**arguments)
