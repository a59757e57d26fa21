"""Follow a run until it ends, for the commands that start one."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from shoal.cli import output
from shoal.cli.main import SELDOM
from shoal.cli.notify import Notifier
from shoal.cli.render import messages
from shoal.cli.run_output import RunOutput
from shoal.errors import ExitCode
from shoal.model.events import Recorded
from shoal.model.plan import Plan, Telemetry
from shoal.model.results import RunBroken, exit_code
from shoal.runs.request import RunRequest, StopSignal

Listener = Callable[[Recorded], None]
OTEL_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Counts the user's signals: the first sets *stop*, the second cancels the run, and further ones do nothing."""

    def __init__(self, task: asyncio.Task[object] | None) -> None:
        self.stop = StopSignal()
        self._task = task
        self._is_cancelled = False

    def request(self) -> None:
        """Handle one signal."""
        if self.stop.is_set() and self._task is not None and not self._is_cancelled:
            self._is_cancelled = True  # another one would interrupt the cleanup: pins and control groups would stay
            self._task.cancel()
        elif not self.stop.is_set():
            self.stop.set()
            output.print_err(messages.stopping())

    def expire(self) -> None:
        """Stop because the deadline has passed."""
        if not self.stop.is_set():
            self.stop.exit_code = ExitCode.TIMED_OUT
            self.stop.set()
            output.print_err(messages.late())


@contextlib.contextmanager
def interruptible(deadline: float | None = None, on_hangup: Callable[[], None] | None = None) -> Iterator[Interrupt]:
    """Handle signals inside this block; after *deadline* seconds act as if one had arrived.

    With *on_hangup*, SIGHUP calls that and stops nothing.
    """
    interrupt = Interrupt(asyncio.current_task())
    loop = asyncio.get_running_loop()
    clock = None if deadline is None else loop.call_later(deadline, interrupt.expire)
    # What was ignored from the start (`nohup`) stays ignored.
    taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in taken:
        is_let_go = number is signal.SIGHUP and on_hangup is not None
        loop.add_signal_handler(number, on_hangup if is_let_go and on_hangup is not None else interrupt.request)
    try:
        yield interrupt
    finally:
        if clock is not None:
            clock.cancel()
        for number in taken:
            loop.remove_signal_handler(number)
            if interrupt.stop.is_set():  # a further signal on the way out would replace our exit code
                signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage rarely inside this block: by default it takes a tenth of the time of many short sessions.

    Only for our own program; a program that embeds Shoal decides for itself.
    """
    before = gc.get_threshold()
    gc.freeze()  # what was imported and planned stays anyway
    gc.set_threshold(SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def follow_run(
    plan: Plan,
    request: RunRequest,
    display: RunOutput,
    deadline: float | None = None,
    on_hangup: Callable[[], None] | None = None,
) -> int:
    """Run *plan* with *display* to show it, for at most *deadline* seconds, and return the exit code."""
    # 0.1 s to import, which a command that finds nothing to run does not pay
    from shoal.runs.run import run

    notifier = Notifier(plan.notify, request.folder, request.environ, approves_all=request.approve_all)

    with interruptible(deadline, on_hangup) as interrupt:
        try:
            async with (
                notifier.open(),
                _open_telemetry(plan.telemetry, request.environ) as measure,
                display.show(request.folder, interrupt.request),
            ):
                listen = partial(_tell_all, (display.on_event, notifier.on_event, measure))
                with seldom_collected():
                    report = await run(plan, request, stop=interrupt.stop, listen=listen)
        except asyncio.CancelledError:
            output.print_err(messages.interrupt_line())
            return ExitCode.INTERRUPTED
        except RunBroken as broken:
            await display.conclude(broken.report, request.folder)
            raise broken.cause from None
        await display.conclude(report, request.folder)
    return exit_code(report)


def _tell_all(listeners: Sequence[Listener], recorded: Recorded) -> None:
    for listen in listeners:
        listen(recorded)


@contextlib.asynccontextmanager
async def _open_telemetry(telemetry: Telemetry | None, environ: Mapping[str, str]) -> AsyncIterator[Listener]:
    """Return a listener that sends telemetry, if the file or OpenTelemetry's variables ask for it."""
    is_asked = telemetry.is_on if telemetry is not None else any(environ.get(name) for name in OTEL_ENDPOINTS)
    if is_asked and environ.get("OTEL_SDK_DISABLED", "").lower() != "true":
        try:
            from shoal.cli.telemetry import open_telemetry
        except ImportError as missing:
            if (missing.name or "").split(".")[0] == "shoal":
                raise
            output.print_err("shoal: no telemetry is sent: run `pip install 'shoal[otel]'`")
        else:
            async with open_telemetry(telemetry or Telemetry(), environ) as measured:
                yield measured.on_event
            return
    yield lambda recorded: None


def make_request(
    plan: Plan, folder: Path, base: str | None = None, *, approve_all: bool = False, is_recorded: bool = False
) -> RunRequest:
    """Make the request to run *plan* on *folder* with its own settings."""
    return RunRequest(
        folder=folder,
        environ=os.environ,
        name=plan.name,
        base=base,
        strategy=plan.isolation_strategy,
        sandbox=plan.sandbox,
        cleanup=plan.cleanup_on_complete,
        keep_database=plan.keep_database,
        database=plan.database,
        store=plan.store,
        checkpoint_seconds=plan.checkpoint_seconds,
        fleet=plan.fleet_limits,
        approve_all=approve_all,
        is_recorded=is_recorded,
        on_gather=lambda commits: output.print_err(messages.gathering(commits)),
        on_blocked=lambda reason: output.print_err(messages.wait_line(reason)),
    )
