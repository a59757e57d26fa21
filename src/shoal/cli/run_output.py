"""A run's output: lines for a person, one JSON document, or a stream of events."""

import contextlib
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.cli import output
from shoal.cli.output import Paint, escape, flat, program
from shoal.cli.render.approve import gate_answered_line, gate_opened_line
from shoal.cli.render.columns import beginning, count, seconds, tone
from shoal.cli.render.overlaps import OverlapLines
from shoal.cli.render.report import Closing, report_lines, why
from shoal.cli.repository import find_place
from shoal.errors import Broken
from shoal.git.diff import changes
from shoal.git.snapshot import is_hidden
from shoal.model.claims import ClaimMade
from shoal.model.contract import warnings
from shoal.model.events import (
    AgentMessaged,
    AgentStarted,
    Event,
    GateAnswered,
    GateOpened,
    OverlapSeen,
    Recorded,
    RequestIgnored,
    RequestTaken,
    RunStarted,
    SessionEnded,
    SessionStarted,
    Waiting,
)
from shoal.model.nodes import NodeChanged, NodeState, WorkFetched
from shoal.model.repository import Repository
from shoal.model.results import Purpose, RunReport, WorkerResult
from shoal.model.talk import ChildSpawned, MessageSent, TalkRefused
from shoal.store.documents import event_line, run_document, text

if TYPE_CHECKING:
    from shoal.cli.live.view import LiveView

COMMIT = 7  # as git shortens it, so that the line fits 80 columns
INDENT = " " * 10
LINE = 80 - len(INDENT) - len("started") - 4  # what 80 columns leave for a session and its prompt
LEAST = 20


class ProgressLines:
    """Describes events, timed from the start of the run; agents' output is in their logs."""

    def __init__(self, paint: Paint, *, width: int = 0) -> None:
        self._paint = paint
        self._width = width
        self._began: float | None = None
        self._last = 0.0
        self._running: set[str] = set()
        self._overlaps = OverlapLines(paint, INDENT)

    def line(self, recorded: Recorded) -> str | None:
        """Describe an event, or return `None` if it is not worth a line."""
        if self._began is None:
            self._began = recorded.at
        words = self._describe_event(recorded.event)
        if words is None:
            return None
        # Sessions timestamp their own events, which may arrive slightly later than those of others.
        self._last = max(self._last, recorded.at - self._began)
        return f"{self._paint(f'{self._last:7.2f}s', 'dim')}  {words}"

    def _describe_event(self, event: Event) -> str | None:
        match event:
            case RunStarted():
                return self._run_started(event)
            case Waiting(reason=reason):
                return f"waiting  {flat(reason)}" if reason else "continuing"
            case GateOpened():
                return gate_opened_line(event, INDENT)
            case GateAnswered():
                return gate_answered_line(event)
            case RequestIgnored(file=file, why=reason):
                return f"ignored  a request, {beginning(file, LEAST)}: {escape(reason)}"
            case RequestTaken():
                return request_line(event)
            case AgentMessaged(session=session, is_delivered=is_delivered, text=text):
                word = "received" if is_delivered else "missed  "
                return f"{word} {escape(session).ljust(self._width)}  {self._paint(beginning(text, LINE), 'dim')}"
            case MessageSent() | ChildSpawned() | TalkRefused():
                return self._talk_line(event)
            case NodeChanged():
                return node_line(event)
            case WorkFetched(node=node, session=session, ref=ref):
                return f"fetched  the work of {escape(session)} from node {escape(node)}: {escape(ref)}"
            case SessionStarted(session=session, prompt=prompt):
                asked = beginning(prompt, max(LEAST, LINE - max(len(session), self._width)))
                return f"started  {escape(session).ljust(self._width)}  {self._paint(asked, 'dim')}".rstrip()
            case AgentStarted(session=session):
                return self._agent_started(session)
            case OverlapSeen(overlap=overlap):
                return self._overlaps.line(overlap)
            case ClaimMade(agent=agent, patterns=patterns, others=[_, *_] as others):
                names = ", ".join(map(escape, others))
                return f"overlap  {escape(agent)} claims {escape(' '.join(patterns)[:LINE])}, as does {names}"
            case SessionEnded(result=result):
                return f"ended    {escape(result.session).ljust(self._width)}  {self._result(result)}"
            case _:
                return None

    def _agent_started(self, session: str) -> str:
        """Say that the agent runs; processes after it check its work."""
        word = "checking" if session in self._running else "running"
        self._running.add(session)
        return f"{word:8} {escape(session)}"

    def _talk_line(self, event: MessageSent | ChildSpawned | TalkRefused) -> str:
        """Say what an agent said to another, started, or was refused."""
        session = escape(event.session).ljust(self._width)
        match event:
            case MessageSent(recipient=recipient, text=text):
                return f"told     {session}  {self._paint(f'{escape(recipient)}: {beginning(text, LINE)}', 'dim')}"
            case ChildSpawned(child=child):
                return f"spawned  {session}  {self._paint(escape(child), 'dim')}"
            case TalkRefused(tool=tool, why=why):
                return f"refused  {session}  {self._paint(f'{escape(tool)}: {beginning(why, LINE)}', 'dim')}"

    def _run_started(self, event: RunStarted) -> str:
        where = f"sandbox {escape(event.wall)}, {escape(event.workspace)}"
        head = f"run {self._paint(escape(event.run), 'bold')} on {escape(event.base)[:COMMIT]}: {where}"
        return "\n".join([head, *(f"{INDENT}note: {flat(note)}" for note in event.notes)])

    def _result(self, result: WorkerResult) -> str:
        status = self._paint(result.status_text, tone(result.status))
        took = seconds(result.duration_seconds)
        kept = (
            "no branch" if result.branch is None else f"{escape(result.branch)}, {count(result.files_changed, 'file')}"
        )
        reason = why(result)
        notes = [f"\n{INDENT}note: {escape(warning.splitlines()[0])}" for warning in warnings(result.checks)]
        return f"{status}  {kept}, {took}" + (f"\n{INDENT}why: {reason}" if reason else "") + "".join(notes)


def node_line(event: NodeChanged) -> str:
    """Say that a node joined the run, was lost, or cannot take part."""
    words = {NodeState.JOINED: "joined", NodeState.LOST: "lost", NodeState.REFUSED: "refused"}
    size = count(event.capacity, "agent") + " at once" if event.state is NodeState.JOINED else flat(event.why)
    return f"{words[event.state]:8} node {escape(event.node)}: {size}"


def request_line(event: RequestTaken) -> str:
    """Describe the request of another process, and name its person."""
    by = flat(event.by)
    if event.refusal:
        return f"refused  {escape(event.kind)}, asked for by {by}: {flat(event.refusal)}"
    match event.kind:
        case "stop":
            what = escape(event.session) or "the run"
            return f"stopping {what}{' at once' if event.is_now else ''}, asked for by {by}"
        case "send":
            return f"message  for {escape(event.session)} by {by}: {beginning(event.message, LINE)}"
        case "pause":
            what = "runs" if event.is_frozen else "starts"
            return f"paused   no agent {what} until `{program()} continue`, asked for by {by}"
        case "set":
            return f"setting  {count(event.value, 'agent')} at once, asked for by {by}"
        case _:
            return f"{escape(event.kind)}, asked for by {by}"


class RunOutput(Protocol):
    """Prints what happens in a run."""

    def show(self, folder: Path, on_quit: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Take over the terminal for the run in *folder*; *on_quit* stops the run as Ctrl-C does."""

    def on_event(self, recorded: Recorded) -> None:
        """Print one event, or nothing; never delay the run."""

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Print the end."""


class LineOutput:
    """For a person: a line for each event worth one, then the report."""

    def __init__(self, *, width: int = 0) -> None:
        self._progress = ProgressLines(output.paint(), width=width)
        self._is_read = True

    def show(self, folder: Path, on_quit: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Do nothing: lines go to stdout."""
        return contextlib.nullcontext()

    def on_event(self, recorded: Recorded) -> None:
        """Print what happened, as long as somebody reads it."""
        line = self._progress.line(recorded)
        if line is not None and isinstance(recorded.event, OverlapSeen):
            output.print_err(line)  # a warning, not part of piped output
        elif line is not None and self._is_read:
            try:
                output.print_out(line)
            except (output.Closed, Broken):
                self._is_read = False  # `shoal run | head -1`: the run itself continues

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Print the report, with the files that several branches changed."""
        if not self._is_read:
            return
        repository = (await find_place(folder)).repository
        closing = Closing(
            changed=await _find_changed_files(report, repository),
            program=program(),
            folder=folder,
            can_merge=not is_hidden(repository),
        )
        try:
            output.print_out("\n".join(fit_terminal(report_lines(report, closing, output.paint()))))
        except output.Closed:
            self._is_read = False


class LiveOutput:
    """For a person at a terminal: what each agent does, drawn in place; then the report."""

    def __init__(self, *, width: int = 0) -> None:
        self._lines = LineOutput(width=width)
        self._view: LiveView | None = None

    @contextlib.asynccontextmanager
    async def show(self, folder: Path, on_quit: Callable[[], None]) -> AsyncIterator[None]:
        """Draw while the run is active."""
        from shoal.cli.live.view import LiveActions, LiveView  # imports rich

        question = "stop the run and keep the work so far? Ctrl-Z, then `bg`, leaves it running"
        self._view = LiveView(LiveActions(folder, on_quit, question))
        async with self._view.open():
            yield

    def on_event(self, recorded: Recorded) -> None:
        """Draw what happened, or print it once the terminal is gone."""
        if self._view is not None and self._view.is_drawing:
            self._view.take(recorded)
        else:
            self._lines.on_event(recorded)

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Print the report."""
        await self._lines.conclude(report, folder)


def fit_terminal(lines: Iterable[str]) -> Iterator[str]:
    """Break lines between words where a terminal would break them anywhere; commands stay whole, for copying."""
    if not output.is_terminal():
        yield from lines
        return
    from shoal.cli.live.text_width import wrap  # imports rich

    columns = shutil.get_terminal_size().columns
    lines = iter(lines)
    for line in lines:
        yield from (part for row in line.split("\n") for part in wrap(row, columns, INDENT))
        if "next:" in line:
            break
    yield from lines


class JsonOutput:
    """For a program: one JSON document on stdout, and the progress on stderr."""

    def __init__(self, *, width: int = 0) -> None:
        self._progress = ProgressLines(output.paint(sys.stderr), width=width)

    def show(self, folder: Path, on_quit: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Do nothing: lines go to stdout."""
        return contextlib.nullcontext()

    def on_event(self, recorded: Recorded) -> None:
        """Print what happened to stderr."""
        if (line := self._progress.line(recorded)) is not None:
            output.print_err(line)

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Print the document."""
        output.print_out(text(run_document(report)))


class EventOutput:
    """For a program that follows the run: every event on its own line."""

    def __init__(self) -> None:
        self._is_read = True

    def show(self, folder: Path, on_quit: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Do nothing: lines go to stdout."""
        return contextlib.nullcontext()

    def on_event(self, recorded: Recorded) -> None:
        """Print the event."""
        if self._is_read:
            try:
                output.print_out(event_line(recorded))
            except (output.Closed, Broken):
                self._is_read = False

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Print nothing: the last event was the end."""


async def _find_changed_files(report: RunReport, repository: Repository) -> dict[str, tuple[str, ...]]:
    # a resolver of conflicts changes the same files as the sessions before it
    workers = [worker for worker in report.workers if worker.purpose is Purpose.WORK]
    found: dict[str, tuple[str, ...]] = {}
    # Compared with its own base: steps that build on each other do not overlap just because of that.
    for base in dict.fromkeys(worker.base or report.base for worker in workers):
        own = [worker for worker in workers if (worker.base or report.base) == base]
        commits = {worker.branch: worker.commit for worker in own if worker.branch and worker.commit}
        found |= await changes(repository.git, base, commits)
    return found
