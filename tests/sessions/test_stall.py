"""A slow client told from a hung one: by what it says, and by what its processes do."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.adapters.claude import ClaudeReader
from shoal.adapters.kind import Reader
from shoal.limits.kind import LimitGroup
from shoal.limits.polling import Polling
from shoal.model.activity import Act, Activity
from shoal.model.command import Command
from shoal.model.limits import ResourceLimits
from shoal.model.masking import Mask
from shoal.proc import Stream
from shoal.sessions.agent_process import sum_io_bytes, wait_for_stall
from shoal.sessions.client_output import ClientOutput
from shoal.sessions.output_log import OutputLog

SECONDS = 0.3
IDLE = "import time; time.sleep(60)"
BUSY = "while True: pass"


class Told:
    """A reader for tests: each line is the name of what the client did."""

    session = None

    def __init__(self) -> None:
        self.is_done = False
        self.usage: dict[str, float] = {}

    def read(self, line: str) -> list[Activity]:
        act, _, rest = line.partition(" ")
        self.is_done = act == "over"
        if act in ("over", "again"):
            return []
        return [Activity(act=Act(act), text=rest, call=rest, seconds=float(rest) if act == "retry" else 0)]

    def verdict(self, exit_code: int | None, errors: str) -> None: ...


def hearing(reader: Reader | None = None, heartbeat: str | None = None) -> tuple[ClientOutput, OutputLog]:
    words = OutputLog("run", "session", lambda event: None, Mask())
    return ClientOutput(words, reader or Told(), lambda denied: None, heartbeat), words


@contextlib.contextmanager
def running(program: str) -> Iterator[LimitGroup]:
    with Polling().group("t", ResourceLimits()) as group:
        command = group.wrap(Command(argv=(sys.executable, "-c", program), cwd=Path("/"), env=dict(os.environ)))
        with subprocess.Popen(list(map(str, command.argv)), env=dict(command.env)) as process:
            try:
                yield group
            finally:
                process.kill()


async def is_stalled(heard: ClientOutput, group: LimitGroup, within: float = 4 * SECONDS) -> bool:
    try:
        async with asyncio.timeout(within):
            await wait_for_stall(heard, group, SECONDS)
    except TimeoutError:
        return False
    return True


async def test_who_says_and_does_nothing_has_stalled() -> None:
    with running(IDLE) as group:
        assert await is_stalled(hearing()[0], group, within=30)


async def test_who_works_has_not() -> None:
    with running(BUSY) as group:
        assert not await is_stalled(hearing()[0], group)


@pytest.mark.parametrize(
    ("lines", "is_over"),
    [
        (["tool a"], False),
        (["tool a", "tool b", "result a"], False),
        (["tool a", "tool b", "result a", "result b"], True),
        (["result a"], True),
        (["retry 60"], False),
        (["retry 0"], True),
        (["said hello"], True),
    ],
)
async def test_a_tool_call_and_a_wait_that_was_told_are_no_stall(lines: list[str], is_over: bool) -> None:
    heard, _ = hearing()
    heard.feed(Stream.STDOUT, "".join(f"{line}\n" for line in lines).encode())

    with running(IDLE) as group:
        assert await is_stalled(heard, group, within=30 if is_over else 4 * SECONDS) == is_over


async def test_every_piece_that_comes_is_life() -> None:
    heard, _ = hearing(ClaudeReader())

    async def speak() -> None:
        while True:
            heard.feed(Stream.STDOUT, b'{"type":"stream_event","event":{}}\n')
            await asyncio.sleep(SECONDS / 6)

    with running(IDLE) as group:
        async with asyncio.TaskGroup() as tasks:
            speaking = tasks.create_task(speak())
            assert not await is_stalled(heard, group)
            speaking.cancel()


def test_a_hum_is_life_and_is_not_kept() -> None:
    heard, words = hearing(heartbeat="humming")
    before = heard.heard_at

    heard.feed(Stream.STDERR, b"one\nINFO humm")
    heard.feed(Stream.STDERR, b"ing piece\ntwo")
    heard.close()

    assert heard.heard_at > before
    assert words.errors == "one\ntwo\n"


def test_who_is_woken_again_is_not_done() -> None:
    heard, _ = hearing()
    heard.feed(Stream.STDOUT, b"over\n")
    assert heard.done.is_set()

    heard.feed(Stream.STDOUT, b"again\n")

    assert not heard.done.is_set()


def test_what_a_process_reads_and_writes_is_counted(tmp_path: Path) -> None:
    before = sum_io_bytes((os.getpid(),))
    (tmp_path / "file").write_bytes(b"x" * 1_000_000)

    (tmp_path / "file").read_bytes()

    assert sum_io_bytes((os.getpid(),)) - before >= 2_000_000
    assert sum_io_bytes((2**22 + 1,)) == 0
