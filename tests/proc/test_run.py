"""A command run until it ends: its outcome, its output up to a limit, its time."""

import os
import signal
import time
from pathlib import Path

import pytest

from shoal.errors import Broken
from shoal.model.command import Command, InheritedBytes, ReportPipe
from shoal.proc import Completed, Exit, run, run_into
from tests.proc.acting import MIB, PATH, children, fds, sh


async def test_a_success_is_told_with_both_outputs() -> None:
    done = await run(sh("echo out; echo err >&2"), timeout=10)

    assert done == Completed(exit=Exit(code=0, signal=None), stdout=b"out\n", stderr=b"err\n", dropped=0)
    assert done.ok


@pytest.mark.parametrize("code", [1, 7, 137, 255])
async def test_an_exit_code_is_recorded_exactly(code: int) -> None:
    done = await run(sh(f"exit {code}"), timeout=10)

    assert done.exit == Exit(code=code, signal=None)
    assert not done.ok


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
async def test_a_signal_is_recorded_exactly(number: signal.Signals) -> None:
    done = await run(sh(f"ulimit -c 0; kill -{int(number)} $$"), timeout=10)

    assert done.exit == Exit(code=None, signal=int(number))
    assert not done.ok


async def test_a_big_stdin_arrives_whole() -> None:
    content = os.urandom(MIB) * 24

    done = await run(Command(argv=("cat",), cwd=Path("/"), env=PATH, stdin=content), timeout=20, limit=32 * MIB)

    assert done.stdout == content


async def test_a_child_that_does_not_read_its_stdin_is_not_waited_for() -> None:
    done = await run(sh("echo done", stdin=bytes(8 * MIB)), timeout=10)

    assert done.stdout == b"done\n"


async def test_without_stdin_a_reader_is_at_the_end_at_once() -> None:
    done = await run(sh("cat; echo end"), timeout=10)

    assert done.stdout == b"end\n"


async def test_output_beyond_the_limit_is_counted() -> None:
    done = await run(
        sh("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo last >&2"), timeout=10, limit=MIB
    )

    assert done.stdout == bytes(MIB)
    assert done.dropped == 3_000_000 - MIB
    assert done.stderr.startswith(bytes(64 * 1024) + b"\n[... 2868933 bytes left out ...]\n")
    assert done.stderr.endswith(b"\x00last\n")


async def test_the_timeout_of_a_run_ends_everything() -> None:
    before = time.monotonic()

    with pytest.raises(TimeoutError):
        await run(sh("sleep 60 & sleep 60"), timeout=0.2)

    assert time.monotonic() - before < 5


async def test_a_file_takes_the_output_up_to_its_limit(tmp_path: Path) -> None:
    with (tmp_path / "small").open("wb") as small, (tmp_path / "big").open("wb", buffering=0) as big:
        under = await run_into(sh("echo fits; echo why >&2"), small, timeout=10, limit=100)
        over = await run_into(sh("exec cat /dev/zero"), big, timeout=10, limit=3_000_001)

    assert (tmp_path / "small").read_bytes() == b"fits\n"
    assert under == Completed(exit=Exit(code=0, signal=None), stdout=b"", stderr=b"why\n", dropped=0)
    assert (tmp_path / "big").stat().st_size == 3_000_001
    assert over.exit == Exit(code=None, signal=signal.SIGKILL)
    assert over.dropped > 0


async def test_a_full_disk_is_told_and_ends_the_child() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(Broken, match="/dev/full: No space left"):
        await run_into(sh("exec cat /dev/zero"), full, timeout=10, limit=MIB)


async def test_fifty_runs_leave_no_descriptor_and_no_zombie() -> None:
    before, children_before = fds(), children()

    for _ in range(50):
        await run(sh("echo $1", InheritedBytes(b"x"), ReportPipe("r"), stdin=b"y"), timeout=10)

    assert len(fds()) == len(before)
    assert children() == children_before
