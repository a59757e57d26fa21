"""A running process: its reports, and every way in which it ends, with nothing left of it."""

import asyncio
import contextlib
import os
import signal
import time

import pytest

from shoal.model.command import ReportPipe
from shoal.proc import Exit, Process, open_process, pidfd_ended
from tests.proc.acting import Heard, sh, watched


async def test_a_report_is_kept_under_its_name() -> None:
    script = 'echo one >&$1; echo two >&$2; eval "exec $1>&- $2>&-"; echo said; sleep 60'
    async with open_process(sh(script, ReportPipe("a"), ReportPipe("b")), sink=Heard()) as process:
        said = [await process.report(name, timeout=10) for name in ("a", "b")]

    assert said == [b"one\n", b"two\n"]


async def test_a_report_ends_with_the_child_and_is_bounded() -> None:
    async with open_process(sh("head -c 300000 /dev/zero >&$1", ReportPipe("big")), sink=Heard()) as process:
        said = await process.report("big", timeout=10)
        ended = await process.wait()

    assert said == bytes(64 * 1024)
    assert ended == Exit(code=0, signal=None)


async def test_a_report_that_does_not_come_is_a_timeout() -> None:
    async with open_process(sh("sleep 60", ReportPipe("late")), sink=Heard()) as process:
        with pytest.raises(TimeoutError):
            await process.report("late", timeout=0.05)


async def test_a_daemon_that_holds_stdout_open_does_not_delay_the_verdict_and_dies() -> None:
    heard = Heard()
    before = time.monotonic()

    async with open_process(sh("sleep 300 & echo $!; echo done"), sink=heard) as process:
        sleeper = int((await heard.said(b"done")).split()[0])
        with watched(sleeper) as pidfd:
            ended = await process.wait()
            alive = not await pidfd_ended(pidfd, 0)
            await process.end()
            dead = await pidfd_ended(pidfd, 5)

    assert ended == Exit(code=0, signal=None)
    assert (alive, dead) == (True, True)
    assert time.monotonic() - before < 2


async def test_a_daemon_that_left_the_session_and_keeps_talking_is_not_listened_to_for_ever() -> None:
    heard = Heard()
    script = "setsid sh -c 'echo $$; while sleep 0.1; do echo talk; done' & echo done"
    before = time.monotonic()

    async with open_process(sh(script), sink=heard) as process:
        await process.wait()
        took = time.monotonic() - before

    assert took < 1.9
    with contextlib.suppress(ProcessLookupError):  # it may have died of SIGPIPE
        os.kill(next(int(word) for word in heard.stdout.split() if word.isdigit()), signal.SIGKILL)


async def test_who_ignores_term_dies_by_kill_with_its_children() -> None:
    heard = Heard()
    async with open_process(sh("trap '' TERM; sleep 300 & echo $!; sleep 300"), sink=heard, grace=0.1) as process:
        with watched(int(await heard.said(b"\n"))) as pidfd:
            ended = await process.end()
            dead = await pidfd_ended(pidfd, 5)

    assert ended == Exit(code=None, signal=signal.SIGKILL)
    assert dead


async def test_who_heeds_term_is_left_its_grace() -> None:
    heard = Heard()
    async with open_process(
        sh("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"), sink=heard
    ) as process:
        await heard.said(b"ready")

    assert heard.stdout == b"ready\nbye\n"
    assert await process.wait() == Exit(code=3, signal=None)


async def test_an_end_can_be_repeated_and_a_kill_after_it_does_nothing() -> None:
    async with open_process(sh("exec sleep 300"), sink=Heard()) as process:
        process.kill()
        ends = [await process.end(), await process.end(0), await process.wait()]
    process.kill()
    ends.append(await process.end())

    assert ends == [Exit(code=None, signal=signal.SIGKILL)] * 4


async def test_a_cancel_in_the_middle_leaves_by_the_same_door() -> None:
    heard = Heard()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_for_ever(heard, grace=2.0))
        with watched(int(await heard.said(b"\n"))) as pidfd:
            task.cancel()
            assert await pidfd_ended(pidfd, 5)

    assert task.cancelled()


async def test_a_second_cancel_cuts_the_grace_short() -> None:
    heard = Heard()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_for_ever(heard, grace=60.0, first="trap '' TERM;"))
        with watched(int(await heard.said(b"\n"))) as pidfd:
            task.cancel()
            assert not await pidfd_ended(pidfd, 0.1)
            task.cancel()
            assert await pidfd_ended(pidfd, 5)

    assert task.cancelled()


async def run_for_ever(heard: Heard, *, grace: float, first: str = "") -> None:
    async with open_process(sh(f"{first} echo $$; sleep 300"), sink=heard, grace=grace) as process:
        await process.wait()


async def test_an_error_in_the_body_ends_the_child() -> None:
    seen: list[Process] = []

    with pytest.raises(KeyError):
        await fail_inside(seen)

    assert await seen[0].wait() == Exit(code=None, signal=signal.SIGTERM)


async def fail_inside(seen: list[Process]) -> None:
    async with open_process(sh("exec sleep 300"), sink=Heard()) as process:
        seen.append(process)
        raise KeyError


async def test_two_may_wait_on_one_pidfd() -> None:
    async with open_process(sh("exec sleep 300"), sink=Heard()) as process:
        with watched(process.pid) as pidfd:
            assert not await pidfd_ended(pidfd, 0.01)
            async with asyncio.TaskGroup() as group:
                waits = [group.create_task(pidfd_ended(pidfd, 5)) for _ in range(2)]
                process.kill()
            assert [wait.result() for wait in waits] == [True, True]
            assert await pidfd_ended(pidfd, 0)
