"""The check of a sandbox: all output arrives in order, whichever pipe is read first."""

import asyncio
import contextlib
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import SandboxBroken
from shoal.model.events import AgentStarted, Output, Recorded, SessionStarted
from shoal.model.status import Status
from shoal.proc import Stream
from shoal.sandboxes.kind import ready_line
from shoal.sandboxes.none import NoSandbox
from shoal.sessions import sandboxed
from shoal.sessions.sandboxed import AT_ONCE, HELD_BYTES, SandboxCheck, hold_turn, hold_turn_early
from tests.acting import ran, step

TOKEN = "5e11"


class Heard:
    """A sink behind a check."""

    def __init__(self) -> None:
        self.chunks: list[tuple[Stream, bytes]] = []
        self.gate = SandboxCheck(NoSandbox(launcher=()), TOKEN, self.take)

    def take(self, stream: Stream, chunk: bytes) -> None:
        self.chunks.append((stream, chunk))


def test_what_is_read_from_stdout_before_the_walls_line_is_held_and_not_lost() -> None:
    heard = Heard()

    heard.gate.feed(Stream.STDOUT, b"first ")
    heard.gate.feed(Stream.STDOUT, b"second")
    before = list(heard.chunks)
    heard.gate.feed(Stream.STDERR, ready_line(TOKEN) + b"rest")
    heard.gate.feed(Stream.STDOUT, b" third")

    assert before == []
    assert heard.chunks == [
        (Stream.STDOUT, b"first second"),
        (Stream.STDERR, b"rest"),
        (Stream.STDOUT, b" third"),
    ]
    heard.gate.assert_open()


def test_without_the_walls_line_nothing_is_heard_and_what_is_held_is_bounded() -> None:
    heard = Heard()

    for _ in range(5):
        heard.gate.feed(Stream.STDOUT, bytes(2**20))
    heard.gate.feed(Stream.STDERR, b"no wall\n")

    with pytest.raises(SandboxBroken, match="no wall"):
        heard.gate.assert_open()
    assert heard.chunks == []
    heard.gate.feed(Stream.STDERR, ready_line(TOKEN))
    assert [len(chunk) for _, chunk in heard.chunks] == [HELD_BYTES]


async def test_an_agent_has_started_before_it_says_anything(repo: Path) -> None:
    seen: dict[str, list[type]] = {}

    def listen(recorded: Recorded) -> None:
        match recorded.event:
            case AgentStarted(session=session) | Output(session=session):
                seen.setdefault(session, []).append(type(recorded.event))

    report = await ran(repo, step("talk", "echo said", workers=4), listen=listen)

    assert [one.output for one in report.steps[0].worker_results] == ["said\n"] * 4
    assert list(seen.values()) == [[AgentStarted, Output]] * 4


async def test_only_a_few_start_at_once_and_no_turn_is_lost_however_a_start_ends() -> None:
    """Starts that end by themselves, twice, by an error or by a cancel, in any order: all turns are there again."""
    chance, starting, most = random.Random(4), 0, 0

    async def start(number: int) -> None:
        nonlocal starting, most
        async with hold_turn() as turn:
            starting += 1
            most = max(most, starting)
            try:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                if number % 5 == 0:
                    raise ValueError
            finally:
                starting -= 1
            turn.end()
            turn.end()
            await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(start(number)) for number in range(200)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        await asyncio.sleep(0)
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert most == AT_ONCE
    assert {type(one) for one in ended} == {type(None), ValueError, asyncio.CancelledError}
    held = [hold_turn() for _ in range(AT_ONCE)]
    async with asyncio.timeout(5):
        for one in held:
            await one.__aenter__()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hold_turn().__aenter__(), 0.01)
        for one in held:
            await one.__aexit__(None, None, None)


async def test_who_hangs_at_its_start_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed, "LONGEST_SECONDS", 0.01)

    async def hang() -> None:
        async with hold_turn():
            await asyncio.Event().wait()

    hung = [asyncio.ensure_future(hang()) for _ in range(AT_ONCE)]
    await asyncio.sleep(0)

    async with asyncio.timeout(5), hold_turn():
        for one in hung:
            one.cancel()


async def test_more_agents_run_at_once_than_may_start_at_once(repo: Path) -> None:
    """A turn ends when the sandbox is up; otherwise these agents, each of which waits for all others, would never end."""
    up: set[str] = set()
    stop = asyncio.Event()

    def listen(recorded: Recorded) -> None:
        if isinstance(recorded.event, Output):
            up.add(recorded.event.session)
        if len(up) == AT_ONCE + 2:
            stop.set()

    async with asyncio.timeout(100):
        await ran(repo, step("hold", "echo up; exec sleep 600", workers=AT_ONCE + 2), stop=stop, listen=listen)

    assert len(up) == AT_ONCE + 2


if os.geteuid() == 0:  # for others, a sandbox seals the work of a worktree, and waits for a turn, too

    async def test_who_waits_for_a_turn_has_made_nothing_yet(repo: Path, tmp_path: Path) -> None:
        """What those before it leave untouched can serve it then: hundreds that wait need a few folders, not hundreds."""
        up, begun = asyncio.Event(), asyncio.Event()
        os.mkfifo(tmp_path / "go")
        first, then = step("first", f"echo up; read go < {tmp_path}/go"), replace(step("then", "pwd"), needs=("first",))

        def listen(recorded: Recorded) -> None:
            match recorded.event:
                case Output():
                    up.set()
                case SessionStarted(step="then"):
                    begun.set()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group, contextlib.AsyncExitStack() as held:
            running = group.create_task(ran(repo, first, then, sandbox="none", listen=listen))
            await up.wait()
            for _ in range(AT_ONCE):
                await held.enter_async_context(hold_turn())
            with open(tmp_path / "go", "r+b", buffering=0) as go:
                go.write(b"on\n")
                await begun.wait()
                for _ in range(50):
                    await asyncio.sleep(0)
            made = list((repo / ".shoal" / "boxes").glob("then-*"))

        assert made == []
        assert running.result().status is Status.SUCCEEDED


async def test_a_turn_that_was_begun_is_the_turn_of_the_first_box_alone() -> None:
    async with asyncio.timeout(5), hold_turn_early():
        async with hold_turn() as first:
            first.end()
        others = [hold_turn() for _ in range(AT_ONCE)]
        for one in others:
            await one.__aenter__()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hold_turn().__aenter__(), 0.01)
        for one in others:
            await one.__aexit__(None, None, None)
