"""The gate of a box: what is said behind a wall is heard whole and in order, whichever pipe is read first."""

from pathlib import Path

import pytest

from shoal.engine.behind import HELD_BYTES, Gate
from shoal.errors import WallBroken
from shoal.model.events import AgentStarted, Output, Recorded
from shoal.proc import Stream
from shoal.sandboxes.kind import wall_line
from shoal.sandboxes.none import NoWall
from tests.acting import ran, step

TOKEN = "5e11"


class Heard:
    """A sink behind a gate."""

    def __init__(self) -> None:
        self.chunks: list[tuple[Stream, bytes]] = []
        self.gate = Gate(NoWall(launcher=()), TOKEN, self.take)

    def take(self, stream: Stream, chunk: bytes) -> None:
        self.chunks.append((stream, chunk))


def test_what_is_read_from_stdout_before_the_walls_line_is_held_and_not_lost() -> None:
    heard = Heard()

    heard.gate.feed(Stream.STDOUT, b"first ")
    heard.gate.feed(Stream.STDOUT, b"second")
    before = list(heard.chunks)
    heard.gate.feed(Stream.STDERR, wall_line(TOKEN) + b"rest")
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

    with pytest.raises(WallBroken, match="no wall"):
        heard.gate.assert_open()
    assert heard.chunks == []
    heard.gate.feed(Stream.STDERR, wall_line(TOKEN))
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
