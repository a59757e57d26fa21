"""Requests to a run arrive complete, in order and once, whoever crashes when; other files in the folder are reported."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput, Broken
from shoal.store.lock import hold_lock_blocking
from shoal.store.paths import StatePaths
from shoal.store.requests import (
    MAX_BYTES,
    MAX_MESSAGE_CHARS,
    ControlRequest,
    RequestDoor,
    answers,
    forget_dead,
    make_folder,
    post,
    read_posted,
    withdraw,
)

RUN = "demo-20260101-ab12"
OLD = (1_000_000_000, 1_000_000_000)
POSTER = """
import sys
from pathlib import Path
from shoal.store.paths import StatePaths
from shoal.store.requests import ControlRequest, post
for number in range(100000):
    post(StatePaths(Path(sys.argv[1])), ControlRequest(kind="answer", run=sys.argv[2], answer="approve", about=number))
    print(number, flush=True)
"""


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    """The state of a run that takes requests."""
    paths = StatePaths(tmp_path / "state")
    paths.create()
    make_folder(paths, RUN)
    return paths


def answer(step: str = "ship", about: int = 7, **more: str) -> ControlRequest:
    return replace(ControlRequest(kind="answer", run=RUN, step=step, about=about, answer="approve", by="ada"), **more)  # type: ignore[arg-type]


def written(paths: StatePaths, content: bytes | str, name: str | None = None) -> str:
    """Leave a file that no poster of ours wrote."""
    name = name or answer().file
    (paths.requests_of(RUN) / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


def names(paths: StatePaths) -> list[str]:
    return sorted(path.name for path in paths.requests_of(RUN).iterdir())


def test_requests_are_read_in_the_order_in_which_they_came_and_stay(paths: StatePaths) -> None:
    requests = [answer(step) for step in ("b", "a", "c")]
    for request in requests:
        post(paths, request)

    assert list(read_posted(paths, RUN).requests) == requests
    assert names(paths) == [request.file for request in requests]
    withdraw(paths, *requests, *requests)
    assert names(paths) == []


@settings(max_examples=50)
@given(st.text(st.characters(), max_size=MAX_MESSAGE_CHARS), st.text(st.characters(), max_size=40))
def test_any_words_arrive_as_they_were_said(message: str, by: str) -> None:
    request = answer(message=message, by=by)
    with scratch() as paths:
        post(paths, request)

        assert read_posted(paths, RUN).requests == (request,)


ODD = st.none() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.none(), max_size=2)
FIELDS = st.dictionaries(st.sampled_from([*ControlRequest.__slots__, "x"]), ODD, max_size=9)


@settings(max_examples=50)
@given(st.binary(max_size=200) | (FIELDS | ODD).map(lambda value: json.dumps(value).encode()))
def test_whatever_lies_there_is_named_and_nothing_raises(content: bytes) -> None:
    with scratch() as paths:
        name = written(paths, content)

        assert list(read_posted(paths, RUN).strange) == [name]


@contextlib.contextmanager
def scratch() -> Iterator[StatePaths]:
    """A state of its own for each example."""
    with tempfile.TemporaryDirectory() as folder:
        paths = StatePaths(Path(folder))
        make_folder(paths, RUN)
        yield paths


def test_what_is_no_request_is_named_and_passed_over(paths: StatePaths, tmp_path: Path) -> None:
    good = answer()
    post(paths, good)
    secret = tmp_path / "secret"
    secret.write_text((paths.requests_of(RUN) / good.file).read_text())
    odd = [answer() for _ in range(3)]
    (paths.requests_of(RUN) / odd[0].file).symlink_to(secret)
    os.mkfifo(paths.requests_of(RUN) / odd[1].file)
    (paths.requests_of(RUN) / odd[2].file).mkdir()
    written(paths, secret.read_text(), answer().file)
    written(paths, b" " * (MAX_BYTES + 1))
    written(paths, "{}", "note.txt")
    for other in (
        answer(kind="dance"),
        answer(answer="maybe"),
        answer(run="another"),
        answer(message="x" * (MAX_MESSAGE_CHARS + 1)),
    ):
        fields = {name: getattr(other, name) for name in ControlRequest.__slots__}
        written(paths, json.dumps(fields), other.file)
    written(paths, "", ".draft")

    mail = read_posted(paths, RUN)

    assert mail.requests == (good,)
    assert set(mail.strange) == set(names(paths)) - {good.file, ".draft"}
    said = " ".join(mail.strange.values())
    for part in ("name is not one of ours", "not a regular file", "'dance'", "'maybe'", "not match its name or folder"):
        assert part in said


def test_where_nobody_takes_requests_none_can_be_left(paths: StatePaths, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gone takes no requests"):
        post(paths, ControlRequest(kind="answer", run="gone", answer="approve"))
    with pytest.raises(BadInput, match="shorten it"):
        post(paths, answer(message="x" * (MAX_MESSAGE_CHARS + 1)))
    with pytest.raises(BadInput, match="must be a plain file name"):
        post(paths, ControlRequest(kind="answer", run="../runs", answer="approve"))
    assert names(paths) == []
    assert list(paths.runs.iterdir()) == []


def test_a_link_is_no_folder_for_requests(paths: StatePaths, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (paths.requests / "linked").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(Broken):
        RequestDoor(paths, "linked").open()
    with pytest.raises((Broken, BadInput)):
        post(paths, ControlRequest(kind="answer", run="linked", answer="approve"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_poster_that_is_killed_leaves_whole_requests_and_all_it_was_sure_of(paths: StatePaths) -> None:
    argv = [sys.executable, "-c", POSTER, str(paths.root), RUN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as poster:
        assert poster.stdout is not None
        sure = [int(next(poster.stdout)) for _ in range(20)]
        poster.kill()
        sure += [int(line) for line in poster.stdout if line.endswith("\n")]

    mail = read_posted(paths, RUN)

    assert mail.strange == {}
    assert [request.about for request in mail.requests][: len(sure)] == sure
    assert len(mail.requests) - len(sure) in (0, 1)


async def test_each_waiter_gets_its_own_answer_and_none_to_another_question(paths: StatePaths) -> None:
    door = RequestDoor(paths, RUN)
    async with asyncio.TaskGroup() as group:
        one, two = (group.create_task(door.first(answers(step, 7))) for step in ("one", "two"))
        await asyncio.sleep(0)
        for request in (answer("one", about=6), answer("two", message="2"), answer("one", message="1")):
            post(paths, request)

    assert (one.result().message, two.result().message) == ("1", "2")


def test_a_request_stays_until_it_is_settled_and_then_is_gone_with_its_doubles(paths: StatePaths) -> None:
    first, second, other = answer(message="first"), answer(message="second"), answer("other")
    for request in (first, second, other):
        post(paths, request)
    fits = answers("ship", 7)

    assert RequestDoor(paths, RUN).now(fits) == first, "read by an owner that dies then"
    door = RequestDoor(paths, RUN)
    assert door.now(fits) == first
    door.settle(fits)
    assert door.now(fits) is None
    assert names(paths) == [other.file]


def test_a_change_within_one_tick_of_the_clock_is_seen(paths: StatePaths) -> None:
    door, folder = RequestDoor(paths, RUN), paths.requests_of(RUN)
    tick = folder.stat()
    assert door.now(answers("ship", 7)) is None

    post(paths, answer())
    os.utime(folder, ns=(tick.st_atime_ns, tick.st_mtime_ns))

    assert door.now(answers("ship", 7)) is not None


def test_a_folder_at_rest_is_not_read_again(paths: StatePaths) -> None:
    door, folder = RequestDoor(paths, RUN), paths.requests_of(RUN)
    os.utime(folder, OLD)
    assert door.now(answers("ship", 7)) is None

    post(paths, answer())
    os.utime(folder, OLD)
    assert door.now(answers("ship", 7)) is None, "only its time was looked at"
    os.utime(folder)
    assert door.now(answers("ship", 7)) is not None


def test_a_request_of_another_user_is_named_and_not_taken(paths: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    post(paths, answer())
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    mail = read_posted(paths, RUN)

    assert (mail.requests, list(mail.strange.values())) == ((), ["it belongs to another user"])


@pytest.mark.parametrize("number", [0, -3])
def test_a_number_of_agents_that_cannot_be_is_named_and_not_taken(paths: StatePaths, number: int) -> None:
    post(paths, ControlRequest(kind="set", run=RUN, value=number))

    (why,) = read_posted(paths, RUN).strange.values()

    assert why == f"it asks for {number} agents at once; at least 1 is possible"


def test_what_is_strange_is_told_once_and_a_lost_folder_is_made_again(paths: StatePaths) -> None:
    told: list[tuple[str, str]] = []
    door = RequestDoor(paths, RUN, lambda name, why: told.append((name, why)))
    written(paths, "x", "x.txt")

    assert [door.now(answers("ship", 7)) for _ in range(3)] == [None] * 3
    assert told == [("x.txt", "its name is not one of ours")]
    (paths.requests_of(RUN) / "x.txt").unlink()
    paths.requests_of(RUN).rmdir()
    door.now(answers("ship", 7))
    post(paths, answer())
    assert door.now(answers("ship", 7)) is not None
    door.close()
    assert list(paths.requests.iterdir()) == []


def test_what_was_left_for_dead_runs_is_removed(paths: StatePaths) -> None:
    post(paths, answer())
    make_folder(paths, "alive")

    with hold_lock_blocking(paths.run_lock("alive"), timeout=0):
        forget_dead(paths)

    assert [path.name for path in paths.requests.iterdir()] == ["alive"]
