"""A standard input that stays open: written while the child runs, no faster than it reads."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from shoal.model.command import OpenInput
from shoal.proc import open_process
from tests.proc.acting import MIB, Count, Heard, fds, python, sh

ECHO = replace(python("import sys\nfor line in sys.stdin: print('heard', len(line), flush=True)"), stdin=OpenInput())


async def test_a_child_is_spoken_to_and_answers_until_its_input_is_closed() -> None:
    before, heard = fds(), Heard()

    async with asyncio.timeout(20), open_process(ECHO, sink=heard) as process:
        await process.write(b"one\n")
        await heard.said(b"heard 4\n")
        await process.write(b"twelve\n")
        await heard.said(b"heard 7\n")
        process.close_input()
        exit_ = await process.wait()

    assert exit_.code == 0
    assert fds() == before


async def test_messages_larger_than_the_pipe_arrive_whole_and_do_not_mix() -> None:
    heard = Heard()

    async with asyncio.timeout(20), open_process(ECHO, sink=heard) as process, asyncio.TaskGroup() as group:
        for letter in (b"a", b"b", b"c"):
            group.create_task(process.write(letter * MIB + b"\n"))
        await heard.said(b"heard 1048577\n" * 3)

    assert heard.stdout == b"heard 1048577\n" * 3


async def test_who_does_not_read_makes_the_writer_wait_and_the_end_frees_it() -> None:
    async with (
        asyncio.timeout(20),
        open_process(replace(sh("exec sleep 300"), stdin=OpenInput()), sink=Count()) as process,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await process.write(b"x" * MIB)
        async with asyncio.TaskGroup() as group:
            told = group.create_task(_refused(process.write(b"x" * MIB)))
            process.kill()

    assert told.result()


async def test_a_closed_input_and_one_that_never_was_are_told() -> None:
    async with asyncio.timeout(20), open_process(ECHO, sink=Count()) as process:
        process.close_input()
        process.close_input()
        assert await _refused(process.write(b"x"))
    async with asyncio.timeout(20), open_process(sh("exec sleep 300"), sink=Count()) as process:
        assert await _refused(process.write(b"x"))


async def _refused(write: Awaitable[None]) -> bool:
    try:
        await write
    except BrokenPipeError:
        return True
    return False
