"""One line for each thing that happens while a run goes on."""

from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.approve import answered_line, opened_line
from shoal.cli.render.columns import beginning, count, seconds, tone
from shoal.cli.render.overlaps import OverlapLines
from shoal.cli.render.why import why
from shoal.model.contract import warnings
from shoal.model.events import (
    AgentStarted,
    Event,
    GateAnswered,
    GateOpened,
    OverlapSeen,
    Recorded,
    RequestIgnored,
    RunStarted,
    SessionEnded,
    SessionStarted,
    Waiting,
)
from shoal.model.results import WorkerResult

COMMIT = 7  # as git shortens it, and so that the line fits a terminal of 80 signs
INDENT = " " * 10
LINE = 80 - len(INDENT) - len("started") - 4  # what a terminal has left for a session and its prompt
LEAST = 20


class Progress:
    """Tells what happens, dated from the start of the run; what agents say is in their logs."""

    def __init__(self, paint: Paint, *, width: int = 0) -> None:
        self._paint = paint
        self._width = width
        self._began: float | None = None
        self._running: set[str] = set()
        self._overlaps = OverlapLines(paint, INDENT)

    def line(self, recorded: Recorded) -> str | None:
        """Say what happened, or nothing where a person need not know."""
        if self._began is None:
            self._began = recorded.at
        words = self._words(recorded.event)
        if words is None:
            return None
        return f"{self._paint(f'{max(0.0, recorded.at - self._began):7.2f}s', 'dim')}  {words}"

    def _words(self, event: Event) -> str | None:
        match event:
            case RunStarted():
                return self._run_started(event)
            case Waiting(reason=reason):
                return f"waiting  {plain(reason)}" if reason else "going on"
            case GateOpened():
                return opened_line(event, INDENT)
            case GateAnswered():
                return answered_line(event)
            case RequestIgnored(file=file, why=reason):
                return f"ignored  a request, {beginning(file, LEAST)}: {plain(reason)}"
            case SessionStarted(session=session, prompt=prompt):
                asked = beginning(prompt, max(LEAST, LINE - max(len(session), self._width)))
                return f"started  {plain(session).ljust(self._width)}  {self._paint(asked, 'dim')}".rstrip()
            case AgentStarted(session=session):
                return self._agent_started(session)
            case OverlapSeen(overlap=overlap):
                return self._overlaps.line(overlap)
            case SessionEnded(result=result):
                return f"ended    {plain(result.session).ljust(self._width)}  {self._result(result)}"
            case _:
                return None

    def _agent_started(self, session: str) -> str:
        """Say that it runs, and for the processes after its agent that its work is checked."""
        word = "checking" if session in self._running else "running"
        self._running.add(session)
        return f"{word:8} {plain(session)}"

    def _run_started(self, event: RunStarted) -> str:
        where = f"wall {plain(event.wall)}, workspace {plain(event.workspace)}"
        head = f"run {self._paint(plain(event.run), 'bold')} on {plain(event.base)[:COMMIT]}: {where}"
        return "\n".join([head, *(f"{INDENT}note: {plain(note)}" for note in event.notes)])

    def _result(self, result: WorkerResult) -> str:
        status = self._paint(result.status.value, tone(result.status))
        took = seconds(result.duration_seconds)
        kept = (
            "no branch" if result.branch is None else f"{plain(result.branch)}, {count(result.files_changed, 'file')}"
        )
        reason = why(result)
        notes = [f"\n{INDENT}note: {plain(one.splitlines()[0])}" for one in warnings(result.checks)]
        return f"{status}  {kept}, {took}" + (f"\n{INDENT}why: {reason}" if reason else "") + "".join(notes)
