"""The guard's own program: what it ends when the watched process is gone, and what it leaves alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from shoal.limits.guard import WATCHER, open_guard
from shoal.limits.polling import Polling
from shoal.proc.namespace import find_namespace
from tests.limits.limit_runs import is_alive


@contextmanager
def sleepers(number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(["sleep", "600"])) for _ in range(number)]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()


def began(process: subprocess.Popen[bytes]) -> int:
    namespace = find_namespace(process.pid, parent=os.getpid())
    assert namespace is not None
    try:
        found = namespace.began()
        assert found is not None
        return found
    finally:
        namespace.close()


@pytest.mark.parametrize("end", ["killed", "input ends"])
def test_it_ends_whom_it_was_told_of_and_no_stranger_with_that_number(end: str) -> None:
    with sleepers(4) as (coordinator, watched, stranger, ended):
        lines = [(watched.pid, began(watched)), (stranger.pid, began(stranger) + 1), (ended.pid, began(ended))]
        argv = [sys.executable, "-I", "-S", str(WATCHER), str(coordinator.pid)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE) as guard:
            assert guard.stdin
            guard.stdin.write("".join(f"{pid} {start}\n" for pid, start in lines).encode())
            guard.stdin.flush()
            ended.kill()
            ended.wait()
            if end == "killed":
                coordinator.kill()
            else:
                guard.stdin.close()
            assert guard.wait(20) == 0

        assert watched.wait(20) == -9
        assert is_alive(stranger.pid)


async def test_a_namespace_that_has_ended_is_not_told_of() -> None:
    with sleepers(1) as (process,):
        namespace = find_namespace(process.pid, parent=os.getpid())
        assert namespace is not None
        process.kill()
        process.wait()
        async with open_guard(Polling()) as guard:
            await guard.watch(namespace)

        assert namespace.began() is None
        namespace.close()
