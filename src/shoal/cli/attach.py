"""`shoal attach`: watch a run of any process, like the terminal where it was started."""

import asyncio
import contextlib
import signal

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo, Run
from shoal.cli.output import escape, program
from shoal.cli.repository import RepositoryState, find_place, is_dead
from shoal.cli.run import EventLines, NoLive
from shoal.cli.run_output import EventOutput, JsonOutput, LineOutput, RunOutput
from shoal.errors import BadInput, ExitCode
from shoal.model.results import exit_code
from shoal.store.fold import report
from shoal.store.lookup import find_run
from shoal.store.progress import RunTail

HEX = len("-3f9c1a")
POLL_SECONDS = 0.2


def command(
    run: Run = None, json: Json = False, events: EventLines = False, no_live: NoLive = False, repo: Repo = HERE
) -> int:
    """Watch a run; Ctrl-C leaves it running.

    Shows what `shoal run` shows, with the same keys, and exits with the run's exit code when it ends.
    """
    if json and events:
        raise BadInput("both --json and --events; choose one")
    place = asyncio.run(find_place(repo))
    chosen = find_run(place.state(), run)
    width = max(map(len, chosen.stages), default=0) + HEX
    display = EventOutput() if events else JsonOutput(width=width) if json else LineOutput(width=width)
    is_live = output.is_live() and not (json or events or no_live)
    return asyncio.run(_Attached(place, chosen.run, display).watch(is_live=is_live))


class _Attached:
    """A terminal that watches a run, until the run is over or the person leaves."""

    def __init__(self, place: RepositoryState, run: str, display: RunOutput) -> None:
        self._place = place
        self._run = run
        self._display = display
        self._left = asyncio.Event()
        self._code = ExitCode.SUCCESS

    async def watch(self, *, is_live: bool) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupt)
        tail = RunTail(self._place.paths, self._run)
        if is_live:
            from shoal.cli.live.view import attach  # imports rich

            await attach(self._place, tail, self._left)
        else:
            await self._print_events(tail)
        return await self._conclude() if tail.is_over else self._say_left()

    def _interrupt(self) -> None:
        self._code = ExitCode.INTERRUPTED
        self._left.set()

    async def _print_events(self, tail: RunTail) -> None:
        while not (self._left.is_set() or tail.is_over):
            for recorded in tail.read():
                self._display.on_event(recorded)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), 0 if tail.is_over else POLL_SECONDS)

    async def _conclude(self) -> int:
        ended = report(self._place.state().runs[self._run])
        await self._display.conclude(ended, self._place.repository.top)
        if is_dead(self._place, self._run):
            output.print_err(f"shoal: {escape(self._run)} was killed; `{program()} resume` continues it")
            return ExitCode.FAILED
        return exit_code(ended)

    def _say_left(self) -> int:
        run = escape(self._run)
        output.print_err(
            f"detached; {run} continues: `{program()} attach {run}` shows it again, `{program()} stop {run}` stops it"
        )
        return self._code
