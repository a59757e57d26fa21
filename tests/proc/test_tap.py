"""A process's output, read as it comes: a flood leaves the loop responsive and the memory small."""

import asyncio
import contextlib
import time

import pytest

from shoal.proc import LineSplitter, Stream, open_process, run
from tests.proc.acting import MIB, Count, Heard, by_line, resident_bytes, sh


async def test_a_sink_that_fails_ends_the_child_and_is_heard_of() -> None:
    def sink(stream: Stream, chunk: bytes) -> None:
        raise LookupError(stream)

    with pytest.raises(LookupError, match="stdout"):
        async with open_process(sh("echo x; sleep 60"), sink=sink) as process:
            await process.wait()


async def test_floods_leave_the_loop_quick_and_the_memory_small() -> None:
    sinks = [Count() for _ in range(4)]
    before = resident_bytes()

    async with contextlib.AsyncExitStack() as stack:
        for sink in sinks:
            await stack.enter_async_context(open_process(sh("cat /dev/zero & exec yes >&2"), sink=sink))
        lags = await lags_within(0.5)

    assert min(sink.size for sink in sinks) > MIB
    assert sorted(lags)[len(lags) // 2] < 0.25
    assert resident_bytes() - before < 64 * MIB


async def test_a_flood_of_short_lines_leaves_the_loop_quick() -> None:
    """A pipeful of `yes` is 32,768 lines: what the sink costs, not only what is read, has its share of the loop."""
    told = Count()

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            sink = by_line(LineSplitter(lambda text, _: told(Stream.STDOUT, text.encode())))
            await stack.enter_async_context(open_process(sh("exec yes"), sink=sink))
        lags = await lags_within(0.5)

    assert told.size > 10_000
    assert sorted(lags)[len(lags) // 2] < 0.25


async def lags_within(seconds: float) -> list[float]:
    loop = asyncio.get_running_loop()
    end, lags = loop.time() + seconds, []
    while (now := loop.time()) < end:
        await asyncio.sleep(0.005)
        lags.append(loop.time() - now - 0.005)
    return lags


async def test_a_flood_into_a_run_is_dropped_and_counted() -> None:
    before = resident_bytes()

    done = await run(sh("timeout 0.5 cat /dev/zero"), timeout=10, limit=MIB)

    assert len(done.stdout) == MIB
    assert done.dropped > MIB
    assert resident_bytes() - before < 64 * MIB


async def test_a_stream_is_read_no_faster_than_its_rate() -> None:
    sink = Count()
    before = time.monotonic()

    async with open_process(sh("exec cat /dev/zero"), sink=sink, rate_bytes=MIB) as process:
        await lags_within(0.3)
        process.kill()
    took = time.monotonic() - before

    assert 0 < sink.size < (took + 0.1) * MIB


async def test_what_was_written_before_the_exit_is_kept_at_any_rate() -> None:
    heard = Heard()
    async with open_process(sh("head -c 60000 /dev/zero"), sink=heard, rate_bytes=1000) as process:
        await process.wait()

    assert heard.stdout == bytes(60000)
