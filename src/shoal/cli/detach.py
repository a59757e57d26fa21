"""Run in the background: start a run in a process of its own, or detach it when the terminal is closed."""

import asyncio
import contextlib
import json as json_
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from shoal.cli import output
from shoal.cli.follow import follow_run
from shoal.cli.output import escape, program
from shoal.cli.run_output import RunOutput
from shoal.errors import BadInput, ShoalError
from shoal.model.command import Argument, Command, ReportPipe
from shoal.model.events import Recorded, RunResumed, RunStarted
from shoal.model.plan import Plan
from shoal.model.results import RunReport
from shoal.proc import Stream, open_process
from shoal.runs.request import RunRequest
from shoal.store.documents import text
from shoal.store.paths import StatePaths

# Not by the path of the script: `-P` keeps a `shoal` directory of the repository from being imported instead of ours.
PROGRAM = ("-P", "-c", "import sys; from shoal.cli.main import main; del sys.argv[0]; main()")
STARTED = "started"
GRACE_SECONDS = 10.0
STDOUT, STDERR = 1, 2


def start_detached(words: Sequence[str], stdin: bytes, folder: Path, *, json: bool) -> int:
    """Run the command *words* in a process of its own; return once its run has started, or with its exit code.

    That process checks all arguments; what it prints before the run starts is printed here.
    """
    first, *rest = words
    argv: tuple[Argument, ...] = (
        sys.executable,
        *PROGRAM,
        sys.argv[0],
        first,
        "--report-start",
        ReportPipe(STARTED),
        *rest,
    )
    command = Command(argv=argv, cwd=Path.cwd(), env=dict(os.environ), stdin=stdin)
    return asyncio.run(_start(command, folder, json=json))


async def _start(command: Command, folder: Path, *, json: bool) -> int:
    async with open_process(command, sink=_relay, grace=GRACE_SECONDS) as process:
        reported = await process.report(STARTED, timeout=float("inf"))
        if not reported:
            ended = await process.wait()
            return ended.code if ended.code is not None else 128 + (ended.signal or 0)
        process.leave_running()
    known = {**json_.loads(reported), "pid": process.pid}
    output.print_out(text(known) if json else "\n".join(_start_lines(known, folder)))
    return 0


def _relay(stream: Stream, chunk: bytes) -> None:
    output.print_err(chunk.decode(errors="replace").removesuffix("\n"))


def _start_lines(known: dict[str, object], folder: Path) -> Iterator[str]:
    run = escape(str(known["run"]))
    yield f"run {run} started in the background, pid {known['pid']}; its output is in {escape(str(known['output']))}"
    yield ""
    yield "next:"
    if folder.resolve() != Path.cwd():
        yield f"  cd {escape(shlex.quote(str(folder)))}"
    yield from (f"  {program()} {words}" for words in (f"attach {run}", "logs -f", f"wait {run}"))


async def follow_apart(
    plan: Plan, request: RunRequest, display: RunOutput, deadline: float | None, report_start: int | None
) -> int:
    """Follow a run that was started in the background, or that detaches when its terminal is closed."""
    from shoal.runs.context import home_of  # imports everything that a run needs

    apart = ApartOutput(display, StatePaths.of(await home_of(request)), report_start)
    return await follow_run(plan, request, apart, deadline, apart.let_go)


class ApartOutput:
    """Wraps another output, and redirects it to the run's file once nobody reads it here."""

    def __init__(self, display: RunOutput, paths: StatePaths, report_start: int | None) -> None:
        self._display = display
        self._paths = paths
        self._report_start = report_start
        self._is_let_go = report_start is not None
        self._run: str | None = None
        if report_start is not None:
            _assert_open(report_start)

    def let_go(self) -> None:
        """Print to the run's file from now on."""
        self._is_let_go = True
        self._redirect()

    def show(self, folder: Path, on_quit: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Show it like the wrapped output."""
        return self._display.show(folder, on_quit)

    def on_event(self, recorded: Recorded) -> None:
        """Show one event; at the first one, tell the starting process where the run is."""
        if self._run is None and isinstance(recorded.event, RunStarted | RunResumed):
            self._run = recorded.event.run
            if self._is_let_go:
                self._redirect()
            self._report()
        self._display.on_event(recorded)

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Show the end."""
        await self._display.conclude(report, folder)

    def _redirect(self) -> None:
        if self._run is None:
            return
        with contextlib.suppress(ShoalError):  # the run matters more than its output, which the ledger has too
            file = self._paths.open_output(self._run)
            for stream in (STDOUT, STDERR):
                os.dup2(file, stream)
            os.close(file)

    def _report(self) -> None:
        if self._report_start is None or self._run is None:
            return
        known = {"run": self._run, "output": str(self._paths.run_output(self._run))}
        with contextlib.suppress(OSError):  # the starting process has gone
            os.write(self._report_start, json_.dumps(known).encode())
        os.close(self._report_start)


def _assert_open(descriptor: int) -> None:
    try:
        os.set_inheritable(descriptor, False)
    except OSError:
        raise BadInput("--report-start is for --detach itself; leave it out") from None
