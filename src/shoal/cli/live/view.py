"""The loop between a run and a person's terminal: it draws progress and handles keys."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from shoal.cli import output
from shoal.cli.diff import DiffRequest, compare, warning
from shoal.cli.live.frame import Pane, ViewState, draw_frame, log_lines
from shoal.cli.live.terminal import Terminal
from shoal.cli.output import Paint
from shoal.cli.render.patch import patch_lines
from shoal.cli.repository import RepositoryState, find_place
from shoal.cli.run_output import ProgressLines
from shoal.errors import ShoalError, first_error
from shoal.model.events import AgentStarted, GateOpened, Recorded, SessionStarted
from shoal.model.gate import GateVerdict
from shoal.store.progress import RunProgress, RunTail
from shoal.store.requests import ControlRequest, RequestKind, post, user_name
from shoal.store.run_state import GateState

FRAME_SECONDS = 0.2
IDLE_FRAMES = 5
"""Frames without news before it redraws, for the clocks."""
PAGE = 10
LOGS = "log of "


@dataclass(frozen=True, slots=True)
class LiveActions:
    """What a person can do to the shown run, whichever process owns it: the same requests that commands send."""

    folder: Path
    on_quit: Callable[[], None]
    quit_question: str = ""
    """What to ask before `on_quit`; empty if quitting does no harm."""

    async def stop(self, run: str, session: str) -> None:
        """Ask the run to stop one session."""
        await self._post(ControlRequest(kind=RequestKind.STOP, run=run, session=session, by=user_name()))

    async def answer(self, run: str, step: str, gate: GateState, verdict: GateVerdict) -> None:
        """Answer a gate."""
        who = user_name()
        await self._post(
            ControlRequest(kind=RequestKind.ANSWER, run=run, step=step, about=gate.seq, answer=verdict.value, by=who)
        )

    async def _post(self, request: ControlRequest) -> None:
        post((await find_place(self.folder)).paths, request)

    async def diff(self, run: str, session: str | None, paint: Paint) -> list[str]:
        """Return what a session changed so far, or all of them together, escaped."""
        wanted = DiffRequest(first=session or run, second=None, is_combined=session is None, form="--patch")
        found = await compare(self.folder, wanted)
        flagged = [warning(found.executable, paint)] if found.executable else []
        return [*found.remarks, *flagged, *(patch_lines(found.patch, paint) if found.patch else ())]


class LiveView:
    """Shows one run in the terminal of stdout, from the events passed to `take`."""

    def __init__(self, actions: LiveActions) -> None:
        self.progress = RunProgress()
        self._actions = actions
        self._paint: Paint = output.paint()
        self._lines = ProgressLines(self._paint)
        self._shown = ViewState()
        self._on_yes: Callable[[], None] | None = None
        self._above: list[str] = []
        self._idle = 0
        self._terminal: Terminal | None = None
        self._jobs: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()

    @property
    def is_drawing(self) -> bool:
        """Return whether there is a terminal to draw on."""
        return self._terminal is not None and not self._terminal.is_gone

    def take(self, recorded: Recorded) -> None:
        """Add one event; it is drawn with the next frame."""
        self.progress.take(recorded)
        self._idle = IDLE_FRAMES
        # The rows show these; the lines above are for what stays.
        if isinstance(recorded.event, SessionStarted | AgentStarted | GateOpened):
            return
        if (line := self._lines.line(recorded)) is not None:
            self.print_above(line)

    def print_above(self, text: str) -> None:
        """Print lines that stay, above what is drawn in place."""
        self._above += text.split("\n")
        self._idle = IDLE_FRAMES

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Draw while the body runs, and restore the terminal on exit."""
        self._terminal = Terminal(self._press, self._draw)
        self._shown = replace(self._shown, has_keys=self._terminal.has_keys)
        error: BaseException | None = None
        try:
            with self._terminal.open(), output.divert(self.print_above):
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._draw_frames()), group.create_task(self._work())]
                    try:
                        yield
                    except BaseException as raised:  # passed around the task group, which would wrap it
                        error = raised
                    for task in tasks:
                        task.cancel()
                self._terminal.draw([], self._above)
                self._above.clear()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        if error is not None:
            raise error

    async def _draw_frames(self) -> None:
        while self.is_drawing:
            await asyncio.sleep(FRAME_SECONDS)
            self._idle += 1
            if self._idle >= IDLE_FRAMES:
                self._draw()

    def _draw(self) -> None:
        if self._terminal is None:
            return
        pane = self._shown.pane
        agent = self.progress.find(self._shown.selected)
        if pane is not None and pane.title.startswith(LOGS) and agent is not None:
            self._shown = replace(self._shown, pane=replace(pane, lines=log_lines(agent)))
        frame = draw_frame(self.progress, self._shown, self._terminal.size, time.time(), self._paint)
        self._terminal.draw(frame, self._above)
        self._above.clear()
        self._idle = 0

    async def _work(self) -> None:
        """Run what keys asked for, one after the other; errors are shown."""
        while True:
            job = await self._jobs.get()
            try:
                await job()
            except (ShoalError, OSError) as error:
                self._shown = replace(self._shown, note=str(error))
            self._draw()

    async def _show_diff(self, session: str | None) -> None:
        title = f"diff of {session or self.progress.run}"
        self._shown = replace(self._shown, pane=Pane(title=title, lines=("…",)))
        self._draw()
        try:
            lines = await self._actions.diff(self.progress.run, session, self._paint)
        except ShoalError as error:
            lines = [output.flat(str(error))]
        if self._shown.pane is not None and self._shown.pane.title == title:
            self._shown = replace(self._shown, pane=Pane(title=title, lines=lines, above=len(lines)))

    def _press(self, key: str) -> None:
        """Act on one key."""
        self._shown = replace(self._shown, note="")
        if self._shown.question:
            self._settle(key)
        elif key in ("up", "down", "page up", "page down"):
            self._move(key)
        elif key in ("escape", "\r", "\n") or (key == "q" and self._shown.pane is not None):
            self._shown = replace(self._shown, pane=None)
        else:
            self._do(key)
        self._draw()

    def _settle(self, key: str) -> None:
        if key not in "ynq" and key != "escape":
            return
        agreed, self._on_yes = self._on_yes if key == "y" else None, None
        self._shown = replace(self._shown, question="")
        if agreed is not None:
            agreed()

    def _move(self, key: str) -> None:
        if (pane := self._shown.pane) is not None:
            step = PAGE if key.startswith("page") else 1
            above = pane.above + (step if key.endswith("up") else -step)
            self._shown = replace(self._shown, pane=replace(pane, above=max(0, min(above, len(pane.lines)))))
            return
        names = [agent.session for agent in self.progress.agents]
        if not names:
            return
        step = (PAGE if key.startswith("page") else 1) * (-1 if key.endswith("up") else 1)
        place = names.index(self._shown.selected) + step if self._shown.selected in names else 0
        self._shown = replace(self._shown, selected=names[max(0, min(place, len(names) - 1))])

    def _do(self, key: str) -> None:
        gate = next(iter(self.progress.gates.items()), None)
        if gate is not None and key in ("y", "n", "d") and self._shown.pane is None:
            self._answer(key, *gate)
        elif key == "q":
            self._ask(self._actions.quit_question, self._actions.on_quit)
        elif key in ("l", "d", "x"):
            self._do_to_agent(key)

    def _answer(self, key: str, step: str, gate: GateState) -> None:
        if key == "d":
            self._jobs.put_nowait(partial(self._show_diff, None))
            return
        verdict = GateVerdict.APPROVE if key == "y" else GateVerdict.REJECT
        self._jobs.put_nowait(partial(self._actions.answer, self.progress.run, step, gate, verdict))

    def _do_to_agent(self, key: str) -> None:
        agent = self.progress.find(self._shown.selected) or next(iter(self.progress.agents), None)
        if agent is None:
            return
        self._shown = replace(self._shown, selected=agent.session)
        if key == "l":
            self._shown = replace(self._shown, pane=Pane(title=LOGS + agent.session, lines=()))
        elif key == "d":
            self._jobs.put_nowait(partial(self._show_diff, agent.session))
        elif agent.is_ended:
            self._shown = replace(self._shown, note=f"{agent.session} has ended")
        else:
            stop = partial(self._actions.stop, self.progress.run, agent.session)
            self._ask(f"stop {output.escape(agent.session)} and keep its work?", partial(self._jobs.put_nowait, stop))

    def _ask(self, question: str, on_yes: Callable[[], None]) -> None:
        if not question:
            on_yes()
            return
        self._on_yes = on_yes
        self._shown = replace(self._shown, question=question)


async def attach(place: RepositoryState, tail: RunTail, left: asyncio.Event) -> None:
    """Show the run of *tail* in this terminal until it ends or the person has *left*."""
    view = LiveView(LiveActions(place.repository.top, left.set))
    async with view.open():
        while not (left.is_set() or tail.is_over):
            for recorded in tail.read():
                view.take(recorded)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), 0 if tail.is_over else FRAME_SECONDS)
