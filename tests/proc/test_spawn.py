"""Starting a child: what it gets, and the error if it cannot start."""

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import BadInput, Broken, Unavailable
from shoal.model.command import Command, InheritedBytes, ReportPipe
from shoal.proc import run
from tests.proc.acting import PATH, python, sh


async def test_given_bytes_are_read_from_the_descriptor_in_argv_and_cannot_be_changed() -> None:
    script = "cat /dev/fd/$1; cat <&$2; (echo x >&$1) 2>/dev/null || echo sealed"

    done = await run(sh(script, InheritedBytes(b"first "), InheritedBytes(b"second\x00")), timeout=10)

    assert done.stdout == b"first second\x00sealed\n"


async def test_the_environment_is_exactly_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKED", "yes")

    done = await run(Command(argv=("/usr/bin/env",), cwd=Path("/"), env={"ONLY": "this"}), timeout=10)

    assert done.stdout == b"ONLY=this\n"


async def test_no_descriptor_of_ours_is_inherited() -> None:
    with open("/dev/null", "rb") as ours:
        os.set_inheritable(ours.fileno(), True)
        done = await run(python("import os; print(sorted(os.listdir('/proc/self/fd')))"), timeout=10)

    assert done.stdout == b"['0', '1', '2', '3']\n"  # the fourth is that of the listing itself


async def test_the_child_runs_in_its_folder_and_in_a_session_of_its_own(tmp_path: Path) -> None:
    script = "import os; print(os.getcwd(), os.getsid(0) == os.getpgid(0) == os.getpid())"

    done = await run(Command(argv=(sys.executable, "-c", script), cwd=tmp_path, env=PATH), timeout=10)

    assert done.stdout.decode() == f"{tmp_path} True\n"


async def test_a_missing_program_is_unavailable() -> None:
    with pytest.raises(Unavailable) as caught:
        await run(
            Command(argv=("no-such-program", InheritedBytes(b"x"), ReportPipe("r")), cwd=Path("/"), stdin=b"x"),
            timeout=10,
        )

    assert caught.value.what == "no-such-program"


async def test_a_program_that_may_not_be_run_is_unavailable(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo")

    with pytest.raises(Unavailable, match="Permission denied"):
        await run(Command(argv=(str(plain),), cwd=tmp_path), timeout=10)


async def test_a_missing_folder_is_not_blamed_on_the_program(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="gone: No such file"):
        await run(Command(argv=("true",), cwd=tmp_path / "gone", env=PATH), timeout=10)


async def test_an_argument_that_no_process_can_have_is_bad_input() -> None:
    with pytest.raises(BadInput, match="null byte"):
        await run(sh("true", "a\x00b"), timeout=10)


async def test_no_free_descriptor_is_a_broken_machine_wherever_it_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start needs ten or so descriptors: it fails, and leaks nothing, with none of them free, with one, with two."""
    monkeypatch.setattr("shoal.proc.process.PATIENCE", 0.0)
    heard = [await outcome_with_free_descriptors(spare) for spare in range(16)]

    assert heard[0] == "Too many open files"
    assert heard[-1] == "ended"
    assert set(heard) == {"Too many open files", "ended"}


async def test_a_start_without_a_free_descriptor_waits_until_there_is_one() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        with exhausted_but_for(0):
            starting = group.create_task(run(sh("echo hi"), timeout=20))
            done, _ = await asyncio.wait([starting], timeout=0.3)
            assert not done
    assert starting.result().stdout == b"hi\n"


async def outcome_with_free_descriptors(spare: int) -> str:
    with exhausted_but_for(spare):
        try:
            await run(sh("true", InheritedBytes(b"x"), ReportPipe("r"), stdin=b"x"), timeout=10)
        except Broken as error:
            return str(error).split(": ")[-1]
    return "ended"


@contextlib.contextmanager
def exhausted_but_for(spare: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    os.close(highest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
