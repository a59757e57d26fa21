"""Processes are started, streamed, capped and ended, and nothing of them is left."""

import asyncio
import contextlib
import itertools
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput, Broken, Unavailable
from shoal.model.command import Argument, Command, Given, Report
from shoal.proc import Budget, Completed, Exit, Lines, Process, Sink, Stream, pidfd_ended, run, run_into, started

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
MIB = 2**20


def sh(script: str, *arguments: Argument, stdin: bytes = b"") -> Command:
    # bash, because dash cannot redirect to descriptors above 9
    return Command(argv=("bash", "-c", script, "bash", *arguments), cwd=Path("/"), env=PATH, stdin=stdin)


def python(script: str, stdin: bytes = b"") -> Command:
    return Command(argv=(sys.executable, "-ISc", script), cwd=Path("/"), env=PATH, stdin=stdin)


class Heard:
    """A sink that keeps stdout and tells when a word was said."""

    def __init__(self) -> None:
        self.stdout = b""
        self._more = asyncio.Event()

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        if stream is Stream.STDOUT:
            self.stdout += chunk
            self._more.set()

    async def said(self, word: bytes) -> bytes:
        async with asyncio.timeout(10):
            while word not in self.stdout:
                self._more.clear()
                await self._more.wait()
        return self.stdout


class Count:
    """A sink that only counts."""

    def __init__(self) -> None:
        self.size = 0

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        self.size += len(chunk)


def fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Whatever a test does, it leaves no child, dead or alive, and no descriptor."""
    fds_before, children_before = fds(), children()

    yield

    assert children() == children_before
    assert len(fds()) == len(fds_before)


@contextlib.contextmanager
def watched(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


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


async def test_given_bytes_are_read_from_the_descriptor_in_argv_and_cannot_be_changed() -> None:
    script = "cat /dev/fd/$1; cat <&$2; (echo x >&$1) 2>/dev/null || echo sealed"

    done = await run(sh(script, Given(b"first "), Given(b"second\x00")), timeout=10)

    assert done.stdout == b"first second\x00sealed\n"


async def test_a_report_is_kept_under_its_name() -> None:
    script = 'echo one >&$1; echo two >&$2; eval "exec $1>&- $2>&-"; echo said; sleep 60'
    async with started(sh(script, Report("a"), Report("b")), sink=Heard()) as process:
        said = [await process.report(name, timeout=10) for name in ("a", "b")]

    assert said == [b"one\n", b"two\n"]


async def test_a_report_ends_with_the_child_and_is_bounded() -> None:
    async with started(sh("head -c 300000 /dev/zero >&$1", Report("big")), sink=Heard()) as process:
        said = await process.report("big", timeout=10)
        ended = await process.wait()

    assert said == bytes(64 * 1024)
    assert ended == Exit(code=0, signal=None)


async def test_a_report_that_does_not_come_is_a_timeout() -> None:
    async with started(sh("sleep 60", Report("late")), sink=Heard()) as process:
        with pytest.raises(TimeoutError):
            await process.report("late", timeout=0.05)


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


async def test_a_sink_that_fails_ends_the_child_and_is_heard_of() -> None:
    def sink(stream: Stream, chunk: bytes) -> None:
        raise LookupError(stream)

    with pytest.raises(LookupError, match="stdout"):
        async with started(sh("echo x; sleep 60"), sink=sink) as process:
            await process.wait()


async def test_floods_leave_the_loop_quick_and_the_memory_small() -> None:
    sinks = [Count() for _ in range(4)]
    before = resident_bytes()

    async with contextlib.AsyncExitStack() as stack:
        for sink in sinks:
            await stack.enter_async_context(started(sh("cat /dev/zero & exec yes >&2"), sink=sink))
        lags = await lags_within(0.5)

    assert min(sink.size for sink in sinks) > MIB
    assert sorted(lags)[len(lags) // 2] < 0.05
    assert resident_bytes() - before < 64 * MIB


async def test_a_flood_of_short_lines_leaves_the_loop_quick() -> None:
    """A pipeful of `yes` is 32,768 lines: what the sink costs, not only what is read, has its share of the loop."""
    told = Count()

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            sink = by_line(Lines(lambda text, _: told(Stream.STDOUT, text.encode())))
            await stack.enter_async_context(started(sh("exec yes"), sink=sink))
        lags = await lags_within(0.5)

    assert told.size > 10_000
    assert sorted(lags)[len(lags) // 2] < 0.05


def by_line(lines: Lines) -> Sink:
    return lambda _, chunk: lines.feed(chunk)


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

    async with started(sh("exec cat /dev/zero"), sink=sink, rate_bytes=MIB) as process:
        await lags_within(0.3)
        process.kill()
    took = time.monotonic() - before

    assert 0 < sink.size < (took + 0.1) * MIB


async def test_what_was_written_before_the_exit_is_kept_at_any_rate() -> None:
    heard = Heard()
    async with started(sh("head -c 60000 /dev/zero"), sink=heard, rate_bytes=1000) as process:
        await process.wait()

    assert heard.stdout == bytes(60000)


async def test_a_daemon_that_holds_stdout_open_does_not_delay_the_verdict_and_dies() -> None:
    heard = Heard()
    before = time.monotonic()

    async with started(sh("sleep 300 & echo $!; echo done"), sink=heard) as process:
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

    async with started(sh(script), sink=heard) as process:
        await process.wait()
        took = time.monotonic() - before

    assert took < 1.9
    with contextlib.suppress(ProcessLookupError):  # it may have died of SIGPIPE
        os.kill(next(int(word) for word in heard.stdout.split() if word.isdigit()), signal.SIGKILL)


async def test_who_ignores_term_dies_by_kill_with_its_children() -> None:
    heard = Heard()
    async with started(sh("trap '' TERM; sleep 300 & echo $!; sleep 300"), sink=heard, grace=0.1) as process:
        with watched(int(await heard.said(b"\n"))) as pidfd:
            ended = await process.end()
            dead = await pidfd_ended(pidfd, 5)

    assert ended == Exit(code=None, signal=signal.SIGKILL)
    assert dead


async def test_who_heeds_term_is_left_its_grace() -> None:
    heard = Heard()
    async with started(
        sh("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"), sink=heard
    ) as process:
        await heard.said(b"ready")

    assert heard.stdout == b"ready\nbye\n"
    assert await process.wait() == Exit(code=3, signal=None)


async def test_an_end_can_be_repeated_and_a_kill_after_it_does_nothing() -> None:
    async with started(sh("exec sleep 300"), sink=Heard()) as process:
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
    async with started(sh(f"{first} echo $$; sleep 300"), sink=heard, grace=grace) as process:
        await process.wait()


async def test_an_error_in_the_body_ends_the_child() -> None:
    seen: list[Process] = []

    with pytest.raises(KeyError):
        await fail_inside(seen)

    assert await seen[0].wait() == Exit(code=None, signal=signal.SIGTERM)


async def fail_inside(seen: list[Process]) -> None:
    async with started(sh("exec sleep 300"), sink=Heard()) as process:
        seen.append(process)
        raise KeyError


async def test_fifty_runs_leave_no_descriptor_and_no_zombie() -> None:
    before = fds()

    for _ in range(50):
        await run(sh("echo $1", Given(b"x"), Report("r"), stdin=b"y"), timeout=10)

    assert len(fds()) == len(before)
    assert children() == []


async def test_a_missing_program_is_unavailable() -> None:
    with pytest.raises(Unavailable) as caught:
        await run(Command(argv=("no-such-program", Given(b"x"), Report("r")), cwd=Path("/"), stdin=b"x"), timeout=10)

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


async def test_no_free_descriptor_is_a_broken_machine_wherever_it_is_met() -> None:
    """A start needs ten or so descriptors: it fails, and leaks nothing, with none of them free, with one, with two."""
    heard = [await outcome_with_free_descriptors(spare) for spare in range(16)]

    assert heard[0] == "Too many open files"
    assert heard[-1] == "ended"
    assert set(heard) == {"Too many open files", "ended"}


async def outcome_with_free_descriptors(spare: int) -> str:
    with exhausted_but_for(spare):
        try:
            await run(sh("true", Given(b"x"), Report("r"), stdin=b"x"), timeout=10)
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


def lines_of(chunks: Sequence[bytes], cap: int = 16 * MIB) -> list[tuple[str, int]]:
    emitted: list[tuple[str, int]] = []
    lines = Lines(lambda text, dropped: emitted.append((text, dropped)), cap=cap)
    for chunk in chunks:
        lines.feed(chunk)
    lines.close()
    lines.close()
    return emitted


def reference(content: bytes, cap: int) -> list[tuple[str, int]]:
    pieces = content.split(b"\n")
    whole = [piece.removesuffix(b"\r") for piece in (pieces if pieces[-1] else pieces[:-1])]
    texts = [line[:cap].decode("utf-8", "replace").replace("\x00", "\ufffd") for line in whole]
    return [(text, max(0, len(line) - cap)) for text, line in zip(texts, whole, strict=True)]


PIECES = st.lists(
    st.one_of(st.binary(max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r", b"\x00", "é€🐟".encode(), b"\xe2\x82"])),
    max_size=20,
)


@given(PIECES, st.lists(st.integers(0, 80), max_size=8), st.sampled_from([1, 2, 5, 1000]))
@settings(max_examples=300, deadline=None)
def test_lines_are_the_same_however_they_are_chunked(pieces: list[bytes], cuts: list[int], cap: int) -> None:
    content = b"".join(pieces)
    borders = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [content[start:end] for start, end in itertools.pairwise(borders)]

    assert lines_of(chunks, cap) == reference(content, cap)


def test_invalid_utf8_and_borders_inside_a_character() -> None:
    fish = "🐟".encode()

    assert lines_of([fish[:1], fish[1:3], fish[3:] + b"\xff\xe2\x82", b"\n\x00\r", b"\n"]) == [
        ("🐟\ufffd\ufffd", 0),
        ("\ufffd", 0),
    ]


def test_a_line_of_exactly_the_cap_is_not_cut_by_its_line_end() -> None:
    assert lines_of([b"abcd\r", b"\nabcde\r\nabcd"], cap=4) == [("abcd", 0), ("abcd", 1), ("abcd", 0)]


async def test_a_line_of_20_mib_is_cut_and_quick() -> None:
    emitted: list[tuple[int, int]] = []
    lines = Lines(lambda text, dropped: emitted.append((len(text), dropped)))
    before = time.process_time()

    script = "import sys; sys.stdout.write('x' * (20 * 2**20) + '\\nnext')"
    async with started(python(script), sink=by_line(lines)) as process:
        await process.wait()
    lines.close()

    assert emitted == [(16 * MIB, 4 * MIB), (4, 0)]
    assert time.process_time() - before < 2


def test_a_budget_keeps_at_most_its_limit_and_counts_the_rest() -> None:
    budget = Budget(10)

    admitted = [budget.admit(size) for size in (4, 6, 1, 5, 0)]

    assert admitted == [True, True, False, False, True]
    assert budget.dropped == 6


async def test_two_may_wait_on_one_pidfd() -> None:
    async with started(sh("exec sleep 300"), sink=Heard()) as process:
        with watched(process.pid) as pidfd:
            assert not await pidfd_ended(pidfd, 0.01)
            async with asyncio.TaskGroup() as group:
                waits = [group.create_task(pidfd_ended(pidfd, 5)) for _ in range(2)]
                process.kill()
            assert [wait.result() for wait in waits] == [True, True]
            assert await pidfd_ended(pidfd, 0)
