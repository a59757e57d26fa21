"""Locks exclude other processes, and are released when their holder dies."""

import asyncio
import contextlib
import platform
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import Broken
from shoal.store.lock import hold_lock, hold_lock_blocking, is_locked, read_holder

HOLDER = """
import sys
from pathlib import Path
from shoal.store.lock import hold_lock_blocking
with hold_lock_blocking(Path(sys.argv[1]), shared=sys.argv[2] == "shared", timeout=5):
    sys.stdout.write("held\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path: Path, how: str = "alone") -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", HOLDER, str(path), how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        try:
            yield child
        finally:
            child.kill()


async def test_a_lock_excludes_other_processes_until_they_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with holder(path) as child:
        assert is_locked(path)
        with (
            pytest.raises(Broken, match=rf"was not released.* process {child.pid} on "),
            hold_lock_blocking(path, timeout=0.02),
        ):
            pass
        with pytest.raises(Broken, match=r"x\.lock was not released"):
            async with hold_lock(path, timeout=0.02):
                pass
        assert read_holder(path) == f"process {child.pid} on {platform.node()}"
        child.kill()

        async with hold_lock(path, timeout=5):
            assert is_locked(path)

    assert not is_locked(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_sharers_share_and_keep_others_out(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"

    with holder(path, "shared"), hold_lock_blocking(path, shared=True, timeout=0):
        assert is_locked(path)
        with pytest.raises(Broken), hold_lock_blocking(path, timeout=0):
            pass


async def test_tasks_of_one_process_take_turns_without_stopping_the_loop(tmp_path: Path) -> None:
    inside: list[int] = []
    most = 0

    async def visit(number: int) -> None:
        nonlocal most
        async with hold_lock(tmp_path / "x.lock", timeout=20):
            inside.append(number)
            most = max(most, len(inside))
            await asyncio.sleep(0)
            inside.remove(number)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(visit(number))

    assert most == 1


async def test_a_cancelled_wait_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"

    with hold_lock_blocking(path, timeout=0), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), hold_lock(path, timeout=20):
            pass

    assert not is_locked(path)


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with hold_lock_blocking(path, timeout=0):
        path.unlink()
        with hold_lock_blocking(path, timeout=1):
            assert is_locked(path)


def test_asking_makes_no_file_and_no_folder_is_an_error_at_once(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "none.lock")
    assert list(tmp_path.iterdir()) == []

    began = time.monotonic()
    with pytest.raises(Broken, match="cannot be opened"), hold_lock_blocking(tmp_path / "no" / "x.lock", timeout=60):
        pass
    assert time.monotonic() - began < 30
